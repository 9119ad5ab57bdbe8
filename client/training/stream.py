"""The stream of a training: messages, replies, and recovery when it breaks."""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

import grpc

from lumigrad.client.base import forks
from lumigrad.client.base.arguments import one_of
from lumigrad.client.errors import (
    Cancelled,
    DeadlineExceeded,
    Internal,
    ResourceExhausted,
    Unavailable,
)
from lumigrad.client.transport.call import Call, Cancellation
from lumigrad.client.transport.connection import REPLY_LIMIT_BYTES, Connection
from lumigrad.client.transport.retry import Attempts, Backoff
from lumigrad.client.transport.status import exception_of
from lumigrad.protos import dtypes
from lumigrad.protos.chunks import PayloadAssembler
from lumigrad.protos.errors import ProtocolError
from lumigrad.protos.streams import collect_until_full, frames_of
from lumigrad.protos.tensors import PayloadReader, PayloadWriter
from lumigrad.protos.wire import Frame
from lumigrad.v1 import training_pb2

T = TypeVar("T")

ImageFormat = Literal["float32", "float16", "bfloat16", "uint8"]
_DTYPES = {"float32": dtypes.FLOAT32, "float16": dtypes.FLOAT16, "bfloat16": dtypes.BFLOAT16, "uint8": dtypes.UINT8}


def step_message(
    number: int, views: Sequence[int], batch: int, outputs: tuple[str, ...], image_format: str, own_loss: bool
) -> training_pb2.Step:
    """The protobuf message of a step; without `views` the worker chooses `batch` of them."""
    one_of("image_format", image_format, _DTYPES)
    return training_pb2.Step(
        number=number,
        views=views,
        batch=0 if views else batch,
        outputs=outputs,
        output_dtype=_DTYPES[image_format],
        own_loss=own_loss,
    )


# How long the worker has to end a call without further requests.
_END_SECONDS = 1.0


@dataclass(frozen=True)
class TrainReply:
    """One reply, complete."""

    message: training_pb2.TrainReply
    reader: PayloadReader

    @property
    def kind(self) -> str:
        """The name of the field that is set."""
        return str(self.message.WhichOneof("kind"))


class Exchange:
    """An RPC until it breaks or is closed."""

    def __init__(self, connection: Connection, call: Call, timeout_s: float) -> None:
        """Starts the RPC of a call; `timeout_s` is how long a reply may take."""
        self._target = connection.target
        self._timeout_s = timeout_s
        self._outgoing: queue.SimpleQueue[tuple[training_pb2.TrainRequest, PayloadWriter] | None] = queue.SimpleQueue()
        self._incoming: queue.SimpleQueue[TrainReply | BaseException] = queue.SimpleQueue()
        self._has_ended = threading.Event()
        self._call = connection.open_stream(connection.training.Train, self._frames(), call)
        threading.Thread(target=self._read, name="lumigrad training", daemon=True).start()

    def send(self, message: training_pb2.TrainRequest, payload: PayloadWriter) -> None:
        """Sends a request after those before it; does not wait."""
        self._outgoing.put((message, payload))

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
            raise reply
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
                self._incoming.put(_complete(frame, frames))
            self._incoming.put(Unavailable(f"the worker at {self._target} ended the training's call"))
        except grpc.RpcError as error:
            translated = exception_of(error, self._target, self._timeout_s)
            translated.__cause__ = error
            self._incoming.put(translated)
        except ProtocolError as error:
            self._incoming.put(Internal(f"the worker at {self._target} broke the contract: {error}"))
        finally:
            self._has_ended.set()


def _complete(first: Frame[Any], frames: Iterator[Frame[Any]]) -> TrainReply:
    message = first.message
    if message is None or message.WhichOneof("kind") is None:
        raise ProtocolError("kind", "a known kind of reply", "none")
    assembler = PayloadAssembler(message.payload_bytes, REPLY_LIMIT_BYTES)
    return TrainReply(message, PayloadReader(collect_until_full(first, frames, assembler)))


Restore = Callable[[Call], None]
_log = logging.getLogger("lumigrad")
# Limit of calls that break in a row without a reply; the step itself may be the cause.
_MOST_BROKEN = 8
# The calls of the parent process, in a forked child.
_LEFT: list[Exchange | None] = []


@dataclass(eq=False)
class _Request:
    """A request, kept as long as it may have to be sent again.

    Attributes:
        number: the step that it belongs to; None: it belongs to no step.
        replies: the number of expected replies.
        delivered: the number of replies that were delivered.
    """

    message: training_pb2.TrainRequest
    payload: PayloadWriter
    number: int | None
    replies: int
    delivered: int = 0

    @property
    def is_answered(self) -> bool:
        """Whether every reply was delivered."""
        return self.delivered == self.replies


class TrainingStream:
    """Sends requests and delivers each reply once, in order.

    Its calls are routed by `affinity`, and `cancellation` ends waiting; `resumed` counts how often the training was
    resumed.
    """

    def __init__(
        self, connection: Connection, affinity: str, timeout_s: float, retry_s: float, restore: Restore
    ) -> None:
        """`restore` uploads what the start of a training needs, if a new worker lacks it."""
        self._connection = connection
        self.affinity = affinity
        self.cancellation: Cancellation | None = None
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._restore = restore
        self._exchange: Exchange | None = None
        self._requests: deque[_Request] = deque()
        # Each expected reply, as its request and its number among the replies of that request.
        self._expected: deque[tuple[_Request, int]] = deque()
        # Replies that were received with the reply to a resumption.
        self._ready: deque[TrainReply] = deque()
        self._started = training_pb2.TrainingStarted()
        # Earlier steps need not be repeated, because a snapshot includes them.
        self._kept_from = 0
        self.resumed = 0
        forks.follow(self)

    def after_fork(self, is_sound: bool) -> None:
        """Leaves the call to the parent process; gRPC must not even destroy it in the child."""
        _LEFT.append(self._exchange)

    @property
    def started(self) -> training_pb2.TrainingStarted:
        """The worker's reply when the training began or was last resumed."""
        return self._started

    @property
    def history_bytes(self) -> int:
        """The size of the payloads that are kept to be sent again."""
        return sum(request.payload.length for request in self._requests)

    def call(self) -> Call:
        """Begins a call to the training's worker."""
        return Call(self._timeout_s, affinity=self.affinity, cancellation=self.cancellation)

    def repeated(self, ask: Callable[[Call], T], call: Call | None = None) -> T:
        """Returns what `ask` returns for a call to the training's worker, with retries; None: a new call."""
        call = call or self.call()
        attempts = Attempts(call, self._retry_s)
        while True:
            with attempts:
                return ask(call)

    def start(self, start: training_pb2.TrainingStart, call: Call | None = None) -> None:
        """Begins or resumes a training, with retries; a new one needs a `start_id`, so that it is begun only once.

        `call`, within which this is done, must be routed as the stream; None: a new call.
        """
        self._connection.check_own()
        self.repeated(partial(self._open, start), call)

    def restart(self) -> None:
        """Resumes the training; requests in flight are discarded."""
        self.close()
        for waiting in (self._requests, self._expected, self._ready):
            waiting.clear()
        self.put_again()
        self.start(self._again())

    def retake(self, number: int) -> training_pb2.TrainingStarted:
        """Resumes the training and discards requests of steps from `number` on that were not done."""
        is_before = (request for request in self._requests if request.number is None or request.number < number)
        self._requests = deque(is_before)
        self._ready.clear()
        self._take_up()
        return self._started

    def send(
        self, message: training_pb2.TrainRequest, payload: PayloadWriter, *, number: int | None = None, replies: int = 1
    ) -> None:
        """Sends a request, of a step if it has a `number`."""
        self._connection.check_own()
        request = _Request(message, payload, number, replies)
        self._requests.append(request)
        self._expect(request)
        if self._exchange is not None:
            self._exchange.send(message, payload)

    def receive(self) -> TrainReply:
        """Returns the next undelivered reply; resumes the training if its call breaks or the worker is full."""
        self._connection.check_own()
        backoff, broken = Backoff(self.call(), self._retry_s), 0
        while True:
            if self._ready:
                return self._ready.popleft()
            try:
                reply = self._live().receive(self.cancellation)
            except ResourceExhausted as error:
                backoff.after(error)
                self._resume()
                continue
            except (Unavailable, Cancelled) as error:
                broken += 1
                if broken == _MOST_BROKEN or (isinstance(error, Unavailable) and error.is_lasting):
                    raise
                self._resume()
                continue
            request, index = self._expected.popleft()
            if index < request.delivered:
                continue
            return self._delivered(request, reply)

    def log_how_to_resume(self) -> None:
        """Logs how to resume the training, which an error has interrupted."""
        _log.warning(
            "an error left the training's block; the worker keeps training %s for a while: "
            "client.resume_trainer(%r, %r) resumes it, and closing that trainer ends it; until then, or for a "
            "minute, its scene cannot be trained anew",
            *(self._started.training_id, self._started.training_id, self._started.lease),
        )

    def close(self) -> None:
        """Ends the call; the training stays on the worker for a while."""
        if self._exchange is not None and not self._connection.is_parents:
            self._exchange.close(is_answered=not self._expected)
            self._exchange = None

    def _live(self) -> Exchange:
        if self._exchange is None:
            self._resume()
        assert self._exchange is not None
        return self._exchange

    def _delivered(self, request: _Request, reply: TrainReply) -> TrainReply:
        request.delivered += 1
        if reply.kind == "done" and reply.message.done.snapshotted:
            self._kept_from = reply.message.done.number + 1
        if reply.kind == "snapshotted":
            self._kept_from = reply.message.snapshotted.step
        self._forget()
        return reply

    def _forget(self) -> None:
        """Removes the requests that cannot be needed again."""
        is_spooled = self._started.HasField("snapshot_step") or self._kept_from
        while self._requests:
            request = self._requests[0]
            is_kept = is_spooled and request.number is not None and request.number >= self._kept_from
            if not request.is_answered or is_kept:
                return
            self._requests.popleft()

    def _resume(self) -> None:
        self._take_up()
        self.resumed += 1

    def _take_up(self) -> None:
        self.close()
        self.put_again()
        undelivered = next((r.number for r in self._requests if r.number is not None and not r.is_answered), None)
        start = self._again()
        start.undelivered = self._started.step if undelivered is None else undelivered
        self.start(start)
        self._repeat()

    def _again(self) -> training_pb2.TrainingStart:
        """The message that resumes the training, unless another client has done so since."""
        return training_pb2.TrainingStart(
            training_id=self._started.training_id, lease=self._started.lease, holder=self._started.holder
        )

    def put_again(self) -> None:
        """Uploads what the start of the training needs."""
        self.repeated(self._restore)

    def _open(self, start: training_pb2.TrainingStart, call: Call) -> None:
        exchange = Exchange(self._connection, call, self._timeout_s)
        exchange.send(training_pb2.TrainRequest(start=start), PayloadWriter())
        try:
            # Waits without cancellation: a training that has begun, but whose id this client has not received, would
            # block its scene for other trainings.
            reply = exchange.receive()
        except BaseException:
            exchange.close()
            raise
        self._started = reply.message.started
        self._exchange = exchange

    def _repeat(self) -> None:
        """Sends the requests of steps that are not done again, and delivers lost replies of steps that are."""
        done = {message.number: message for message in self._started.done}
        self._expected.clear()
        for request in list(self._requests):
            if request.number is not None and request.number < self._started.step:
                self._take_over(request, done)
            elif request.number is not None or not request.is_answered:
                self._expect(request)
                assert self._exchange is not None
                self._exchange.send(request.message, request.payload)
        self._forget()

    def _take_over(self, request: _Request, done: dict[int, training_pb2.StepDone]) -> None:
        """Delivers the repeated reply of a step that was done, but whose reply was lost; its images are lost."""
        assert request.number is not None
        if request.is_answered:
            return
        request.delivered = request.replies
        is_whole = not request.message.step.own_loss
        if is_whole and request.number in done:
            message = training_pb2.TrainReply(done=done[request.number])
            self._ready.append(TrainReply(message, PayloadReader()))

    def _expect(self, request: _Request) -> None:
        self._expected.extend((request, index) for index in range(request.replies))
