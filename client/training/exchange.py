"""The RPC of a training: sends requests and receives their replies until the RPC breaks."""

from __future__ import annotations

import math
import queue
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import grpc

from lumigrad.client.base.arrays import Array
from lumigrad.client.errors import DeadlineExceeded, Internal, LaneLost, LumigradError, Unavailable
from lumigrad.client.transport.call import Call, Cancellation
from lumigrad.client.transport.connection import REPLY_LIMIT_BYTES, Connection
from lumigrad.client.transport.lanes import StreamTrip
from lumigrad.client.transport.status import exception_of
from lumigrad.protos.chunks import PayloadAssembler
from lumigrad.protos.errors import ProtocolError
from lumigrad.protos.streams import collect_until_full, frames_of
from lumigrad.protos.tensors import PayloadReader, PayloadWriter
from lumigrad.protos.wire import Frame
from lumigrad.v1 import tensor_pb2, timings_pb2, training_pb2

# How long the worker has to end a call without further requests.
_END_SECONDS = 1.0


@dataclass(eq=False)
class Request:
    """A request, which may be sent several times; its tensors are encoded anew each time.

    Attributes:
        number: the first step that it belongs to; None: it belongs to no step.
        replies: the number of expected replies.
        gradients: the tensors of a StepGradients by name, in their wire format, and their dtypes (None: NumPy's).
        delivered: the number of replies that were delivered.
    """

    message: training_pb2.TrainRequest
    number: int | None = None
    replies: int = 1
    gradients: Mapping[str, tuple[Array, tensor_pb2.DType | None]] = field(default_factory=dict)
    delivered: int = 0

    @property
    def steps(self) -> int:
        """The number of requested steps, from `number` on; each has its own reply."""
        return int(self.message.step.count) or 1

    @property
    def undelivered(self) -> int | None:
        """The first step whose reply was not delivered; None: the request belongs to no step."""
        if self.number is None:
            return None
        return self.number + (self.delivered if self.message.step.count else 0)

    def divided(self, number: int) -> tuple[Request, Request]:
        """Splits it into requests for the steps before `number` and for the rest, neither of which may be empty."""
        assert self.number is not None
        count, views = number - self.number, list(self.message.step.views)
        size = len(views) // self.steps
        parts = []
        for first, steps, of_part in (
            (self.number, count, views[: size * count]),
            (number, self.steps - count, views[size * count :]),
        ):
            asked = self.message.step
            step = training_pb2.Step(number=first, count=steps, views=of_part, batch=asked.batch, pace=asked.pace)
            delivered = min(max(self.delivered - (first - self.number), 0), steps)
            parts.append(Request(training_pb2.TrainRequest(step=step), first, steps, delivered=delivered))
        return parts[0], parts[1]

    @property
    def is_answered(self) -> bool:
        """Whether every reply was delivered."""
        return self.delivered == self.replies

    @property
    def nbytes(self) -> int:
        """The bytes of its tensors."""
        return sum(array.nbytes for array, _ in self.gradients.values())

    @property
    def has_tensors(self) -> bool:
        """Whether the request or one of its replies has tensors that may be large."""
        return bool(self.gradients or self.message.step.outputs or self.message.HasField("get_scene"))

    def encoded(self, trip: StreamTrip) -> training_pb2.TrainRequest:
        """Returns the message to send, with its tensors written to the trip's payload."""
        message = training_pb2.TrainRequest(lane=trip.lane_name)
        message.MergeFrom(self.message)
        for name, (array, dtype) in self.gradients.items():
            tensor = trip.payload.add(array, dtype)
            message.gradients.output_gradients.append(tensor_pb2.NamedTensor(name=name, tensor=tensor))
        return message


@dataclass(frozen=True)
class TrainReply:
    """A complete reply."""

    message: training_pb2.TrainReply
    reader: PayloadReader

    @property
    def kind(self) -> str:
        """The name of the field that is set."""
        return str(self.message.WhichOneof("kind"))


@dataclass(eq=False)
class _Sent:
    """A request in flight: the transport of its payloads, and the number of missing replies."""

    trip: StreamTrip
    missing: int


class Exchange:
    """One RPC, until it breaks or is closed. Large tensors travel through shared memory if the worker is local."""

    def __init__(self, connection: Connection, call: Call, timeout_s: float) -> None:
        """Starts the RPC of a call; `timeout_s` is the time-out of each reply."""
        self._connection = connection
        self._target = connection.target
        self._timeout_s = timeout_s
        self._outgoing: queue.SimpleQueue[tuple[training_pb2.TrainRequest, PayloadWriter] | None] = queue.SimpleQueue()
        self._incoming: queue.SimpleQueue[TrainReply | BaseException] = queue.SimpleQueue()
        # The infinite time-out is harmless: lanes have their own time limits.
        self._lane_call = Call(math.inf, affinity=call.affinity)
        self._lock = threading.Lock()
        self._sent: deque[_Sent] = deque()
        self._is_over = False
        # The error that ended the call, even while earlier replies have not been received.
        self.error: LumigradError | None = None
        self._has_ended = threading.Event()
        self._call = connection.open_stream(connection.training.Train, self._frames(), call)
        threading.Thread(target=self._read, name="lumigrad training", daemon=True).start()

    def send(self, request: Request, *, has_lanes: bool) -> None:
        """Queues a request, through a lane if the training `has_lanes`; does not wait for the reply."""
        trip = self._connection.lanes.trip(self._lane_call) if has_lanes and request.has_tensors else StreamTrip()
        try:
            message = request.encoded(trip)
        except BaseException:
            trip.end(succeeded=False)
            raise
        self._connection.lanes.note(trip.payload.length)
        with self._lock:
            is_over = self._is_over
            if not is_over:
                self._sent.append(_Sent(trip, request.replies))
        if is_over:
            trip.end(succeeded=False)
        else:
            self._outgoing.put((message, trip.payload))

    def receive(self, cancellation: Cancellation | None = None) -> TrainReply:
        """Waits for the next reply and returns it."""
        try:
            # Cancelling the wait ends the RPC; its reader then puts an error into the queue.
            with nullcontext() if cancellation is None else cancellation.watch(self._call):
                reply = self._incoming.get(timeout=self._timeout_s)
        except queue.Empty:
            self.close()
            raise DeadlineExceeded(
                f"no reply from {self._target} within {self._timeout_s:g} s; pass a larger timeout_s"
            ) from None
        if isinstance(reply, BaseException):
            # Later calls get the same error.
            self._incoming.put(reply)
            # A copy, because an error that was raised refers to this exchange, which keeps it.
            raise copy(reply) from reply.__cause__
        return reply

    def close(self, *, is_answered: bool = False) -> None:
        """Ends the call; pending requests are not sent.

        If every request `is_answered`, this waits briefly for the worker to end the call.
        """
        self._outgoing.put(None)
        if is_answered:
            self._has_ended.wait(_END_SECONDS)
        self._call.cancel()

    def _frames(self) -> Iterator[Frame[training_pb2.TrainRequest]]:
        while (item := self._outgoing.get()) is not None:
            yield from frames_of(*item)

    def _read(self) -> None:
        try:
            frames = iter(self._call)
            for frame in frames:
                for reply in self._complete(frame, frames):
                    self._incoming.put(reply)
            error: LumigradError = Unavailable(f"the worker at {self._target} ended the training's call")
        except grpc.RpcError as failed:
            error = exception_of(failed, self._target, self._timeout_s)
            error.__cause__ = failed.with_traceback(None)
        except LaneLost as failed:
            error = failed.with_traceback(None)
        except ProtocolError as failed:
            error = Internal(f"the worker at {self._target} broke the contract: {failed}")
        finally:
            # The remaining requests get no replies; release their shared memory.
            with self._lock:
                self._is_over = True
            while self._sent:
                self._sent.popleft().trip.end(succeeded=False)
            self._has_ended.set()
        self.error = error
        self._incoming.put(error)

    def _complete(self, first: Frame[Any], frames: Iterator[Frame[Any]]) -> list[TrainReply]:
        message = first.message
        if message is None or message.WhichOneof("kind") is None:
            raise ProtocolError("kind", "a known kind of reply", "none")
        if not self._sent:
            raise ProtocolError("kind", "a reply to a request", message.WhichOneof("kind"))
        assembler = PayloadAssembler(message.payload_bytes, REPLY_LIMIT_BYTES)
        payload = collect_until_full(first, frames, assembler)
        self._connection.lanes.note(message.payload_bytes)
        sent = self._sent[0]
        by_lane = message.HasField("images") or message.HasField("scene")
        reader = sent.trip.reader(message, payload) if by_lane else PayloadReader(payload)
        replies = [TrainReply(message, reader)]
        if message.HasField("steps"):
            replies = [TrainReply(each, PayloadReader()) for each in _each_step(message)]
        if not 0 < len(replies) <= sent.missing:
            raise ProtocolError("steps", f"1 to {sent.missing} of the steps that were asked for", str(len(replies)))
        sent.missing -= len(replies)
        if not sent.missing:
            self._sent.popleft()
            sent.trip.end(succeeded=True)
        return replies


def _each_step(message: training_pb2.TrainReply) -> Iterator[training_pb2.TrainReply]:
    """Splits a reply to several steps into one reply per step, each with an equal share of the time."""
    share = 1.0 / max(len(message.steps.done), 1)
    timings = timings_pb2.Timings(total_milliseconds=message.timings.total_milliseconds * share)
    for stage in message.timings.stages:
        timings.stages.add(name=stage.name, milliseconds=stage.milliseconds * share)
    for done in message.steps.done:
        yield training_pb2.TrainReply(done=done, timings=timings)
