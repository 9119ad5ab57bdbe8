"""The stream of a training: messages, replies, and recovery when it breaks."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, TypeVar

from lumigrad.client.base import forks
from lumigrad.client.base.arguments import one_of
from lumigrad.client.errors import (
    Cancelled,
    DeadlineExceeded,
    LaneLost,
    LumigradError,
    ResourceExhausted,
    TrainingHeld,
    TrainingLost,
    Unavailable,
)
from lumigrad.client.training.exchange import Exchange, Request, TrainReply
from lumigrad.client.transport.call import Call, Cancellation
from lumigrad.client.transport.connection import Connection
from lumigrad.client.transport.retry import Attempts, Backoff
from lumigrad.protos import dtypes
from lumigrad.protos.tensors import PayloadReader
from lumigrad.v1 import training_pb2

T = TypeVar("T")

ImageFormat = Literal["float32", "float16", "bfloat16", "uint8"]
_DTYPES = {"float32": dtypes.FLOAT32, "float16": dtypes.FLOAT16, "bfloat16": dtypes.BFLOAT16, "uint8": dtypes.UINT8}


def step_message(
    number: int,
    views: Sequence[int],
    batch: int,
    outputs: tuple[str, ...],
    image_format: str,
    own_loss: bool,
    count: int = 0,
    pace: float = 0.0,
) -> training_pb2.Step:
    """Returns the protobuf message of a step; without `views` the worker chooses `batch` of them.

    With `count`, the message requests that many steps, and `views` are the views of all of them. A `pace` of 0 means 1.
    """
    one_of("image_format", image_format, _DTYPES)
    return training_pb2.Step(
        number=number,
        views=views,
        batch=0 if views else batch,
        outputs=outputs,
        output_dtype=_DTYPES[image_format],
        own_loss=own_loss,
        count=count,
        pace=pace,
    )


Restore = Callable[[Call], None]
# Log records get the texts of errors, not the errors: a handler may keep records, and an error keeps its traceback's
# frames with all their arrays.
_log = logging.getLogger("lumigrad")
# Limit of consecutive calls that break without a reply, since the step itself may be the cause.
_MOST_BROKEN = 8
# In a forked child: the parent's calls, kept alive because gRPC must not destroy them here.
_LEFT: list[Exchange | None] = []


def _steps_lost(started: training_pb2.TrainingStarted, first: int) -> TrainingLost:
    """Returns the error of a training whose worker has only an older snapshot than the client can continue from."""
    text = f"the worker has lost steps of the training and is back at step {started.step}, its last snapshot"
    remedy = "`resume_trainer` goes on from the snapshot"
    message = f"{text}; this client cannot repeat the steps before step {first}, which another one made; {remedy}"
    return TrainingLost(message, training_id=started.training_id)


class TrainingStream:
    """Sends requests and delivers each reply once, in order.

    `affinity` is the routing key of its calls, `cancellation` ends waiting, and `resumed` counts how often the training
    was resumed.
    """

    def __init__(
        self, connection: Connection, affinity: str, timeout_s: float, retry_s: float, restore: Restore
    ) -> None:
        """Stores the settings, without a call; `restore` uploads target images that a restarted worker lacks."""
        self._connection = connection
        self.affinity = affinity
        self.cancellation: Cancellation | None = None
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._restore = restore
        self._exchange: Exchange | None = None
        self._requests: deque[Request] = deque()
        # Each expected reply, as its request and its number among the replies of that request.
        self._expected: deque[tuple[Request, int]] = deque()
        # Replies that came with the reply to a resumption.
        self._ready: deque[TrainReply] = deque()
        self._started = training_pb2.TrainingStarted()
        # Earlier steps need not be repeated, because a snapshot includes them.
        self._kept_from = 0
        # The first step without a result.
        self._undone = 0
        # Whether large tensors may travel through shared memory.
        self._may_use_lanes = True
        self.resumed = 0
        # Whether the worker has refused a request and thereby ended the call.
        self.is_refused = False
        forks.follow(self)

    def after_fork(self, is_sound: bool) -> None:
        """Leaves the call to the parent process; gRPC must not even destroy it in the child."""
        _LEFT.append(self._exchange)

    @property
    def started(self) -> training_pb2.TrainingStarted:
        """The worker's reply to the start or last resumption of the training."""
        return self._started

    @property
    def history_bytes(self) -> int:
        """The size of the payloads that are kept for resending."""
        return sum(request.nbytes for request in self._requests)

    def call(self) -> Call:
        """Begins a call to the training's worker."""
        return Call(self._timeout_s, affinity=self.affinity, cancellation=self.cancellation)

    def repeated(self, ask: Callable[[Call], T], call: Call | None = None) -> T:
        """Returns the result of `ask`, called with retries; `call` limits all attempts together, None: a new call."""
        call = call or self.call()
        attempts = Attempts(call, self._retry_s)
        while True:
            with attempts:
                return ask(call)

    def start(self, start: training_pb2.TrainingStart, call: Call | None = None) -> None:
        """Begins or resumes a training, with retries; a new one needs a `start_id`, so that it is begun only once.

        `call` limits all attempts together and must be routed like the stream; None: a new call.
        """
        self._connection.check_own()
        self.repeated(partial(self._open, start), call)

    def restart(self) -> None:
        """Resumes the training; requests in flight are discarded."""
        self.close()
        for waiting in (self._requests, self._expected, self._ready):
            waiting.clear()
        # Nothing will be repeated.
        self._undone = 0
        self.put_again()
        self.start(self._again())
        self.is_refused = False

    def retake(self, number: int) -> training_pb2.TrainingStarted:
        """Resumes the training and discards requests for steps from `number` on; returns the worker's reply."""
        self._divide(number)
        is_before = (request for request in self._requests if request.number is None or request.number < number)
        self._requests = deque(is_before)
        self._ready.clear()
        self._take_up()
        return self._started

    def send(self, request: Request) -> None:
        """Sends a request."""
        self._connection.check_own()
        self._requests.append(request)
        self._expect(request)
        if self._exchange is not None:
            self._exchange.send(request, has_lanes=self._has_lanes)

    def check_held(self) -> None:
        """Raises TrainingHeld if another client has taken over the training, even before earlier replies are received.

        Resumes the training if its call was cancelled for another reason.
        """
        error = None if self._exchange is None else self._exchange.error
        if isinstance(error, Cancelled):
            try:
                self._resume(error)
            except TrainingHeld:
                self.is_refused = True
                raise

    def drop_refused(self) -> int | None:
        """Resumes the training without the refused request and all that were sent after it.

        Returns the number of the next step, or None if no step was dropped.
        """
        self.close()
        waiting = [
            request.undelivered
            for request in self._requests
            if request.undelivered is not None and not request.is_answered
        ]
        self._requests = deque(
            request for request in self._requests if request.number is not None or request.is_answered
        )
        self._ready.clear()
        self._begin_again(min(waiting, default=None))
        number = max(min(waiting), self._started.step) if waiting else None
        if number is not None:
            # Replies to completed steps are lost. Their requests are kept, because a worker that dies has to repeat
            # the steps.
            self._divide(number)
            self._requests = deque(request for request in self._requests if (request.number or 0) < number)
            for request in self._requests:
                request.delivered = request.replies
        self._repeat()
        self.is_refused = False
        return number

    def receive(self) -> TrainReply:
        """Returns the next undelivered reply; resumes the training if its call breaks or the worker is full.

        Any other error sets `is_refused` until `drop_refused` is called.
        """
        try:
            return self._received()
        except (Unavailable, Cancelled, DeadlineExceeded):
            # These are not refusals: the requests will be sent again.
            raise
        except LumigradError:
            self.is_refused = True
            raise

    def _received(self) -> TrainReply:
        self._connection.check_own()
        backoff, broken = Backoff(self.call(), self._retry_s), 0
        while True:
            if self._ready:
                return self._ready.popleft()
            try:
                if self._exchange is None:
                    self._resume()
                assert self._exchange is not None
                reply = self._exchange.receive(self.cancellation)
            except LaneLost as error:
                # The call reached a different worker than the lane's, or the lane is broken.
                self._may_use_lanes = False
                self._resume(error)
                continue
            except ResourceExhausted as error:
                if not backoff.after(error):
                    raise
                self._resume(error)
                continue
            except (Unavailable, Cancelled) as error:
                broken += 1
                if broken == _MOST_BROKEN or (isinstance(error, Unavailable) and error.is_lasting):
                    raise
                self._resume(error)
                continue
            request, index = self._expected.popleft()
            if index < request.delivered:
                continue
            return self._delivered(request, reply)

    def log_how_to_resume(self) -> None:
        """Logs how to resume the training after an error has interrupted it."""
        _log.warning(
            "an error left the training's block; the worker keeps training %s for a while: "
            "client.resume_trainer(%r, %r) resumes it, and closing that trainer ends it; until then, or for a "
            "minute, its scene cannot be trained anew",
            *(self._started.training_id, self._started.training_id, self._started.lease),
        )

    def close(self) -> None:
        """Ends the call; the worker keeps the training for a while."""
        if self._exchange is not None and not self._connection.is_parents:
            self._exchange.close(is_answered=not self._expected)
            self._exchange = None

    def abandon(self) -> bool:
        """Ends the call at once; safe in finalizers. Returns False in a forked child, whose parent owns the call."""
        if self._connection.is_parents:
            return False
        if self._exchange is not None:
            self._exchange.close()
        return True

    @property
    def _has_lanes(self) -> bool:
        return self._may_use_lanes and self._started.has_lanes

    def _delivered(self, request: Request, reply: TrainReply) -> TrainReply:
        request.delivered += 1
        if reply.kind == "done":
            self._undone = reply.message.done.number + 1
            if reply.message.done.snapshotted:
                self._kept_from = self._undone
        if reply.kind == "snapshotted":
            self._kept_from = reply.message.snapshotted.step
        self._forget()
        return reply

    def _forget(self) -> None:
        """Removes requests that will not be needed again."""
        is_spooled = self._started.HasField("snapshot_step") or self._kept_from
        while self._requests:
            request = self._requests[0]
            is_kept = is_spooled and request.number is not None and request.number + request.steps > self._kept_from
            # A step with the client's own loss must be rendered again before its gradients can be sent again.
            is_open = request.message.step.own_loss and request.message.step.number >= self._undone
            if not request.is_answered or is_kept or is_open:
                return
            self._requests.popleft()

    def _resume(self, error: LumigradError | None = None) -> None:
        if error is not None:
            _log.info("a training is resumed: %s", str(error))
        self._take_up()
        self.resumed += 1

    def _take_up(self) -> None:
        self.close()
        undelivered = next((r.undelivered for r in self._requests if r.number is not None and not r.is_answered), None)
        self._begin_again(undelivered)
        self._repeat()

    def _begin_again(self, undelivered: int | None) -> None:
        """Resumes the training, in a new call; `undelivered` is the first step whose reply did not arrive."""
        self.put_again()
        start = self._again()
        start.undelivered = self._started.step if undelivered is None else undelivered
        self.start(start)

    def _again(self) -> training_pb2.TrainingStart:
        """Returns the message that resumes the training, unless another client has taken it over since."""
        return training_pb2.TrainingStart(
            training_id=self._started.training_id, lease=self._started.lease, holder=self._started.holder
        )

    def put_again(self) -> None:
        """Uploads the target images that the worker lacks."""
        self.repeated(self._restore)

    def _open(self, start: training_pb2.TrainingStart, call: Call) -> None:
        exchange = Exchange(self._connection, call, self._timeout_s)
        exchange.send(Request(training_pb2.TrainRequest(start=start)), has_lanes=False)
        try:
            # Wait without cancellation: if the training begins but this client does not receive its id, nobody can end
            # it, and it blocks its scene for other trainings.
            reply = exchange.receive()
        except BaseException:
            exchange.close()
            raise
        started, first = reply.message.started, self._first_repeatable
        if started.step < first:
            exchange.close()
            raise _steps_lost(started, first)
        self._started = started
        self._undone = started.step
        self._exchange = exchange

    @property
    def _first_repeatable(self) -> int:
        """The first step that this client can send again if the worker has lost it."""
        return next((request.number for request in self._requests if request.number is not None), self._undone)

    def _repeat(self) -> None:
        """Sends requests for unfinished steps again, and delivers the lost replies of completed steps."""
        done = {message.number: message for message in self._started.done}
        self._divide(self._started.step)
        self._expected.clear()
        for request in list(self._requests):
            if request.number is not None and request.number < self._started.step:
                self._take_over(request, done)
            elif request.number is not None or not request.is_answered:
                self._expect(request)
                assert self._exchange is not None
                self._exchange.send(request, has_lanes=self._has_lanes)
        self._forget()

    def _take_over(self, request: Request, done: dict[int, training_pb2.StepDone]) -> None:
        """Delivers the repeated replies of completed steps whose replies were lost; their images are lost."""
        assert request.number is not None and request.undelivered is not None
        if request.is_answered:
            return
        is_whole = not request.message.step.own_loss
        for number in range(request.undelivered, request.number + request.steps):
            if is_whole and number in done:
                self._ready.append(TrainReply(training_pb2.TrainReply(done=done[number]), PayloadReader()))
        request.delivered = request.replies

    def _divide(self, number: int) -> None:
        """Splits a request for steps before and after `number` into two."""
        divided: deque[Request] = deque()
        for request in self._requests:
            is_across = request.number is not None and request.number < number < request.number + request.steps
            divided.extend(request.divided(number) if is_across else (request,))
        self._requests = divided

    def _expect(self, request: Request) -> None:
        self._expected.extend((request, index) for index in range(request.replies))
