"""A training on a worker, as a loop sees it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

from lumigrad.client.base.arguments import names, whole_number
from lumigrad.client.base.arrays import Array, float32_array
from lumigrad.client.base.timings import Timings
from lumigrad.client.errors import InvalidArgument, LumigradError, TrainingHeld, TrainingLost
from lumigrad.client.rendering.request import WireFormat
from lumigrad.client.training.results import Images, StepResult
from lumigrad.client.training.stream import ImageFormat, TrainingStream, TrainReply, step_message
from lumigrad.client.transport.call import Cancellation
from lumigrad.client.values.handle import Scene, SceneHandle
from lumigrad.client.workers.scene_store import SceneStore
from lumigrad.protos import dtypes
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.v1 import tensor_pb2, training_pb2

# Enough for a step of a few milliseconds over a link of 50 ms.
_IN_FLIGHT = 32
# Gradients that are kept for a worker that dies: beyond it a snapshot is asked for.
_HISTORY_BYTES = 512 << 20


class Trainer:
    """Optimises a scene where it is stored. Not to be shared between threads.

    It survives broken connections, and, where the worker has a spool, workers that die: it goes on from the last
    snapshot, and the steps since then are made again.
    """

    def __init__(self, stream: TrainingStream, store: SceneStore, has_loss: bool, snapshot_every: int = 0) -> None:
        """`Client.trainer` makes one."""
        self._stream = stream
        self._store = store
        self._has_loss = has_loss
        self._next = int(stream.started.step)
        # The step after those that were sent, and whether these wait for gradients.
        self._sent, self._is_own = self._next, False
        self._has_ended = False
        # Images that came before the result that somebody waited for.
        self._early: deque[Images] = deque()
        # Results of steps whose gradients are sent, until the worker tells them.
        self._late: deque[LateResult] = deque()
        self._snapshot_every = snapshot_every
        # Batches that may be on their way, and the step that gradients were sent for last.
        self._ahead, self._applied = 1, -1

    def __enter__(self) -> Trainer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Ends the training, but keeps it on the worker, and tells how to go on, when an error leaves the block."""
        if error is not None and not self._has_ended and not isinstance(error, TrainingHeld | TrainingLost):
            self._stream.tell_how_to_resume()
        self.close(finish=error is None)

    def _cancelled_by(self, cancellation: Cancellation | None) -> Trainer:
        """The same trainer, whose calls `cancellation` ends from now on; None: nobody does."""
        self._stream.cancellation = cancellation
        return self

    @property
    def training_id(self) -> str:
        """Names the training on the worker."""
        return self._stream.started.training_id

    @property
    def lease(self) -> str:
        """With it `Client.resume_trainer` takes the training up; whoever has it can."""
        return self._stream.started.lease

    @property
    def step_number(self) -> int:
        """Of the next step."""
        return self._next

    @property
    def snapshot_step(self) -> int | None:
        """The step of the newest snapshot when the training was begun or taken up; None: there is none."""
        started = self._stream.started
        return int(started.snapshot_step) if started.HasField("snapshot_step") else None

    @property
    def resumed(self) -> int:
        """How often the training was taken up again after a connection, or a worker, was lost."""
        return self._stream.resumed

    def steps(
        self,
        count: int,
        *,
        batch: int = 1,
        views: Sequence[Sequence[int]] | None = None,
        outputs: Sequence[str] = (),
        image_format: ImageFormat = "float32",
        in_flight: int = _IN_FLIGHT,
    ) -> Iterator[StepResult]:
        """Makes steps with the training's own loss, several on their way at a time.

        Args:
            count: how many.
            batch: views of a step, chosen by the worker: each once before any comes again.
            views: instead, the views of each step.
            outputs: images to bring along: "color", "alpha", "depth", "expected_depth".
            image_format: how they travel.
            in_flight: steps on their way at the most. Those already sent are made even if the loop ends early.
        """
        if not self._has_loss:
            raise InvalidArgument.of("loss", "expected a training with targets and a loss; use `batches` without them")
        limit = min(whole_number("in_flight", in_flight, 1, 1 << 16), int(self._stream.started.max_in_flight))
        self._clear_up()
        last, sent = self._next + count, self._next
        while self._next < last:
            while sent < last and sent - self._next < limit:
                chosen = () if views is None else views[count - (last - sent)]
                self.send_step(sent, chosen, batch, names("outputs", outputs), image_format)
                sent += 1
            yield self.receive_step(self._images() if outputs else None)

    def step(self, /, views: Sequence[int] = (), **options: Any) -> StepResult:
        """One step; `options` as those of `steps`."""
        return next(self.steps(1, views=[views] if views else None, **options))

    def batches(
        self,
        count: int,
        *,
        batch: int = 1,
        views: Sequence[Sequence[int]] | None = None,
        outputs: Sequence[str] = ("color",),
        image_format: ImageFormat = "float32",
        in_flight: int = 1,
    ) -> Iterator[Batch]:
        """Renders the views of each step, for whoever computes the loss here: call `apply` of each batch.

        Args:
            count: steps.
            batch: views of a step, chosen by the worker.
            views: instead, the views of each step.
            outputs: images: "color", "alpha", "depth", "expected_depth".
            image_format: how they travel.
            in_flight: 1: each picture shows what all steps before have made, and `apply` returns when the step is
                made. 2 to 4: the next ones are rendered, and travel, meanwhile, and lag behind by a step less.
        """
        self._ahead = limit = whole_number("in_flight", in_flight, 1, 4)
        self._clear_up()
        number = sent = self._next
        last = number + count
        while number < last:
            while sent < last and sent - number < limit and not (sent > number and self._rests_before(sent)):
                chosen = () if views is None else views[count - (last - sent)]
                self.send_step(sent, chosen, batch, names("outputs", outputs), image_format, own_loss=True)
                sent += 1
            yield Batch(self, self._images())
            if self._applied != number:
                raise LumigradError("the batch before was not applied: call its apply(color=…) in each round")
            number += 1
            if number == sent and self._stream.history_bytes > _HISTORY_BYTES:
                self.snapshot()
        self.settle()

    def _rests_before(self, number: int) -> bool:
        """Whether a step is only sent when no other waits for gradients: a snapshot is between two steps."""
        is_due = self._snapshot_every > 0 and number % self._snapshot_every == 0
        return is_due or self._stream.history_bytes > _HISTORY_BYTES

    def publish(self) -> SceneHandle:
        """Makes the parameters as they are now the next version of the scene; returns its handle.

        Raises:
            SceneNotFound: the scene was deleted or evicted; `Client.resume_trainer` goes on with the steps.
            VersionMismatch: somebody has updated it.
        """
        self._stream.send(training_pb2.TrainRequest(publish=training_pb2.Publish()), PayloadWriter())
        published = self._received("published").message.published
        return self._store.handle(published.scene, self._stream.call())

    def scene(self) -> Scene:
        """The scene as it is now, downloaded."""
        handle = self.publish()
        call = self._stream.call()
        attempts = self._stream.attempts(call)
        while True:
            with attempts:
                found = self._store.get(handle.scene_id, True, call).scene
                assert found is not None
                return found

    def snapshot(self) -> int:
        """Has the worker write everything into its spool; returns the number of the next step."""
        self._stream.send(training_pb2.TrainRequest(snapshot=training_pb2.Snapshot()), PayloadWriter())
        return int(self._received("snapshotted").message.snapshotted.step)

    def views(self) -> tuple[tuple[training_pb2.TrainingView, ...], Array | None]:
        """The views as they are now, with refined poses, and the exposures [V, 3, 4] if they are optimised."""
        self._stream.send(training_pb2.TrainRequest(get_views=training_pb2.GetViews()), PayloadWriter())
        reply = self._received("views")
        found = reply.message.views
        exposures = reply.reader.read(found.exposures, "exposures") if found.HasField("exposures") else None
        return tuple(found.views), exposures

    def close(self, *, finish: bool = True) -> None:
        """Ends the training; no harm if it has ended.

        Args:
            finish: let the worker forget it; what was not published is lost. False: it waits there for a while.
        """
        has_ended, self._has_ended = self._has_ended, True
        if not has_ended and finish:
            # It expires by itself.
            with suppress(LumigradError):
                try:
                    self._finish()
                except (TrainingHeld, TrainingLost):
                    # It is another client's to end.
                    raise
                except LumigradError:
                    # An error ended the call, not the training.
                    self._stream.restart()
                    self._finish()
        self._stream.close()

    def _finish(self) -> None:
        self._stream.send(training_pb2.TrainRequest(finish=training_pb2.Finish()), PayloadWriter())
        self._received("finished")

    def apply(self, gradients: training_pb2.StepGradients, payload: PayloadWriter) -> LateResult:
        """Sends what a batch's loss gives; `Batch.apply` does it."""
        result = LateResult(int(gradients.number), self)
        self._stream.send(training_pb2.TrainRequest(gradients=gradients), payload, number=result.number)
        self._late.append(result)
        self._applied = result.number
        if self._ahead == 1:
            self.settle()
        return result

    def settle(self, awaited: LateResult | None = None) -> None:
        """Wait for the results of gradients that were sent, up to the one that is awaited; None: all."""
        while self._late and not (awaited is not None and awaited.is_known):
            self.receive_step()

    def _clear_up(self) -> None:
        """Ends what a loop has left that ended early: steps are made, pictures without gradients are forgotten."""
        if self._is_own:
            self.settle()
            if self._next < self._sent:
                self._sent = self._next = max(self._next, int(self._stream.retake(self._next).step))
        while self._next < self._sent:
            self.receive_step()
        self._early.clear()

    def send_step(
        self,
        number: int,
        views: Sequence[int] = (),
        batch: int = 1,
        outputs: tuple[str, ...] = (),
        image_format: str = "float32",
        own_loss: bool = False,
    ) -> None:
        """Sends a step ahead; `receive_step` gives its result. Loops are easier: see `steps`."""
        step = step_message(number, views, batch, outputs, image_format, own_loss)
        replies = 1 if own_loss or not outputs else 2
        self._stream.send(training_pb2.TrainRequest(step=step), PayloadWriter(), number=number, replies=replies)
        self._sent, self._is_own = number + 1, own_loss

    def _images(self) -> Images:
        if self._early:
            return self._early.popleft()
        reply = self._received("images")
        return Images(reply.message.images, reply.reader)

    def receive_step(self, images: Images | None = None) -> StepResult:
        """What the step did that was sent first of those whose results are to come."""
        return self._told(self._received("done"), images)

    def _told(self, reply: TrainReply, images: Images | None) -> StepResult:
        message = reply.message
        self._next = int(message.done.number) + 1
        result = StepResult.of(message.done, images, Timings.of(message.timings, 0.0))
        if self._late:
            self._late.popleft().tell(result)
        return result

    def _received(self, kind: str) -> TrainReply:
        while (reply := self._stream.receive()).kind != kind:
            if reply.kind == "done":
                # Of a step that a loop sent ahead and did not wait for.
                self._told(reply, None)
            elif reply.kind == "images":
                self._early.append(Images(reply.message.images, reply.reader))
        return reply


class LateResult:
    """What a step did, `StepResult`, once the worker has told: whoever looks at an attribute waits for it.

    Attributes:
        number: of the step; known at once.
    """

    def __init__(self, number: int, trainer: Trainer) -> None:
        """`trainer` gives the result to `tell`."""
        self.number = number
        self._trainer = trainer
        self._result: StepResult | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.result(), name)

    def result(self) -> StepResult:
        """The result itself; waits for it."""
        if self._result is None:
            self._trainer.settle(self)
        assert self._result is not None
        return self._result

    @property
    def is_known(self) -> bool:
        """Whether `result` returns at once."""
        return self._result is not None

    def _cancelled_by(self, cancellation: Cancellation | None) -> LateResult:
        """The same result; whoever waits for it is ended by `cancellation`."""
        self._trainer._cancelled_by(cancellation)
        return self

    def tell(self, result: StepResult) -> None:
        """Give the result."""
        self._result = result


class Batch:
    """The pictures of one step, which waits for the gradient of a loss.

    Attributes:
        images: what was asked for; also as attributes of the batch: `batch.color` [C, H, W, K].
        views: which were rendered.
    """

    def __init__(self, trainer: Trainer, images: Images) -> None:
        self._trainer = trainer
        self.images = images
        self.views = images.views

    def __getattr__(self, name: str) -> Array:
        return getattr(self.__dict__["images"], name)  # type: ignore[no-any-return]

    def apply(self, /, *, gradient_format: WireFormat = "float32", **gradients: Any) -> LateResult:
        """Makes the step. With more than one in flight it does not wait for the worker: that is for the result to do.

        Args:
            gradient_format: how the gradients travel.
            gradients: dL/d output by its name, shaped as the output.
        """
        payload = PayloadWriter()
        message = _gradients_message(self.images.number, gradients, gradient_format, payload)
        return self._trainer.apply(message, payload)

    def _cancelled_by(self, cancellation: Cancellation | None) -> Batch:
        """The same batch, whose calls `cancellation` ends."""
        self._trainer._cancelled_by(cancellation)
        return self


def _gradients_message(
    number: int, gradients: Mapping[str, Any], gradient_format: WireFormat, payload: PayloadWriter
) -> training_pb2.StepGradients:
    """The request that brings the gradients of a step; their bytes go to `payload`."""
    message = training_pb2.StepGradients(number=number)
    for name, value in gradients.items():
        array = float32_array(name, value)
        if gradient_format == "float32":
            tensor = payload.add(array)
        elif gradient_format == "float16":
            tensor = payload.add(array.astype("<f2"))
        else:
            tensor = payload.add(dtypes.float32_to_bfloat16(array), dtypes.BFLOAT16)
        message.output_gradients.append(tensor_pb2.NamedTensor(name=name, tensor=tensor))
    return message
