"""Reads the requests, and their payloads, from the stream of a training."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from lumigrad.protos.wire import Frame
from lumigrad.server.core.call import REQUEST_ID, Call
from lumigrad.server.core.errors import CancelledError, InvalidArgumentError
from lumigrad.server.core.progress import payload_due
from lumigrad.server.core.streams import assembled
from lumigrad.server.storage.tenants import Runtime
from lumigrad.v1 import training_pb2


class Part(Call):
    """The work for one message of a stream, as a call of its own that ends with the whole call at the latest."""

    def __init__(self, whole: Call, operation: str) -> None:
        record = whole.record
        super().__init__(record.method, whole._caller, ((REQUEST_ID, record.request_id),), deadline=whole.deadline)
        self.tenant = whole.tenant
        self.priority = whole.priority
        self.report_stages = whole.report_stages
        self.record.engine = record.engine
        self.record.operation = operation
        self._whole = whole
        self.on_end(self._report)

    def check(self) -> None:
        """Raise if the whole call is over, or if the caller took back memory that the part reads."""
        self._whole.check()
        self.checked = self._whole.checked
        self.lane.check_held()

    @contextmanager
    def by_lane(self, name: str) -> Iterator[None]:
        """Use the lane that the caller has named, if any, for the tensors of a `with` block."""
        self.lane_name = name
        if name:
            self.lane = self._whole.lane_of(self)
        try:
            yield
        finally:
            self._whole.record.bytes_received += self.lane.bytes_received
            self._whole.record.bytes_sent += self.lane.bytes_sent
            # The caller may have received a reply even if the call has failed since, so it releases every lease itself.
            self.lane.end(delivered=True)

    def cancel(self, why: str) -> None:
        """Cancel the whole call."""
        self._whole.cancel(why)

    def _report(self) -> None:
        self.report_stages(self.record.engine, self.record.operation, self.times.milliseconds)


class Parts:
    """The unfinished parts of one call; they end with it at the latest."""

    def __init__(self, whole: Call) -> None:
        self._whole = whole
        self._lock = threading.Lock()
        self._open: set[Part] = set()
        self._has_ended = False
        whole.on_end(self.end)

    def begin(self, operation: str) -> Part:
        """Begin a part; raises CancelledError if the call has ended."""
        part = Part(self._whole, operation)
        with self._lock:
            if self._has_ended:
                raise CancelledError
            self._open.add(part)
        return part

    def close(self, part: Part) -> None:
        """End a part."""
        with self._lock:
            self._open.discard(part)
        part.end()

    def end(self) -> None:
        """End all parts and allow no more."""
        with self._lock:
            self._has_ended = True
            parts, self._open = self._open, set()
        for part in parts:
            part.end()


Frames = Iterator[Frame[training_pb2.TrainRequest]]
Replies = Iterator[Frame[training_pb2.TrainReply]]

# Requests read ahead; gRPC's flow control holds back further ones.
_MOST_WAITING = 4
# How often the reader, while the queue is full, checks whether the call has ended.
_LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class Request:
    """A complete request."""

    message: training_pb2.TrainRequest
    payload: memoryview
    part: Part

    @property
    def kind(self) -> str:
        """The name of the field that is set."""
        return str(self.message.WhichOneof("kind"))


class Requests:
    """The requests of one call, in order."""

    def __init__(self, frames: Frames, runtime: Runtime, call: Call) -> None:
        """Start reading."""
        self._frames = frames
        self._runtime = runtime
        self._parts = Parts(call)
        self._call = call
        self._waiting: queue.Queue[Request | BaseException | None] = queue.Queue(_MOST_WAITING)
        self._changed = threading.Condition()
        # The number of requests that were read but not answered.
        self._unanswered = 0
        # The largest payload of each step's gradients, in bytes.
        self._expected: dict[int, int] = {}
        self._has_ended = False
        call.on_end(self._end)
        threading.Thread(target=self._read, name="training requests", daemon=True).start()

    def __iter__(self) -> Iterator[Request]:
        """Yield each request until the stream ends; an invalid request raises its error in turn."""
        while (request := self._next()) is not None:
            yield request

    @property
    def is_next_here(self) -> bool:
        """Whether the next request, or the end of the stream, has arrived."""
        return not self._waiting.empty()

    def close(self, request: Request) -> None:
        """Release the memory of an answered request. Requests left open are closed when the call ends."""
        self._parts.close(request.part)
        self._call.progress.renew()
        with self._changed:
            self._unanswered -= 1
            self._changed.notify_all()

    def expect(self, number: int, nbytes: int) -> None:
        """Accept the gradients of a step, with a payload of at most `nbytes`."""
        with self._changed:
            self._expected[number] = nbytes
            self._changed.notify_all()

    def _next(self) -> Request | None:
        while True:
            try:
                request = self._waiting.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                self._call.check()
                continue
            if isinstance(request, BaseException):
                raise request
            if request is not None:
                # Set here, because only the start message determines the engine.
                request.part.record.engine = self._call.record.engine
            return request

    def _read(self) -> None:
        try:
            for frame in self._frames:
                self._put(self._complete(frame))
                if self._has_ended:
                    return
            self._put(None)
        except BaseException as error:
            self._put(error)

    def _complete(self, first: Frame[training_pb2.TrainRequest]) -> Request:
        message = first.message
        if message is None or message.WhichOneof("kind") is None:
            raise InvalidArgumentError("kind", "one of the kinds of requests", "none")
        # A request may wait for earlier requests, which may wait for the client to read replies.
        self._call.turn.give()
        self._call.progress.renew()
        # Messages count too, because most requests have no payload.
        self._call.record.bytes_received += message.ByteSize()
        part = self._parts.begin(str(message.WhichOneof("kind")))
        limit_bytes = self._payload_limit(message)
        if limit_bytes is None:
            # Gradients of an unknown step get their error when they are answered, which ends the call.
            return Request(message, memoryview(b""), part)
        assembler = self._runtime.payload_memory.assembler(message.payload_bytes, limit_bytes, part)
        with payload_due(self._call.progress):
            limit = "only data until the payload is complete"
            payload = assembled(assembler, first, self._frames, limit, "another request")
        return Request(message, payload, part)

    def _payload_limit(self, message: training_pb2.TrainRequest) -> int | None:
        """Return the largest payload of a request in bytes: 0 unless it has gradients; None for an unknown step.

        Waits until the step, or all requests before, are answered.
        """
        if message.WhichOneof("kind") != "gradients":
            if message.payload_bytes:
                raise InvalidArgumentError("payload_bytes", "0: only gradients have a payload", message.payload_bytes)
            return 0
        number = message.gradients.number
        with self._changed:
            self._changed.wait_for(lambda: number in self._expected or not self._unanswered or self._has_ended)
            known = self._expected.pop(number, None)
        return None if known is None else min(known, self._runtime.limits.payload_bytes)

    def _end(self) -> None:
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def _put(self, request: Request | BaseException | None) -> None:
        with self._changed:
            self._unanswered += 1
        while not self._has_ended:
            try:
                self._waiting.put(request, timeout=_LOOK_SECONDS)
                return
            except queue.Full:
                continue
