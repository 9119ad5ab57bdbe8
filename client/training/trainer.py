"""`Trainer`: runs the steps of a training on a worker."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

from lumigrad.client.base.arguments import whole_number
from lumigrad.client.base.arrays import Array
from lumigrad.client.base.staying import Staying
from lumigrad.client.base.timings import Timings
from lumigrad.client.errors import InvalidArgument, LumigradError, SceneNotFound, TrainingHeld, TrainingLost
from lumigrad.client.rendering.request import WireFormat
from lumigrad.client.training.checks import (
    Encoded,
    Sizes,
    batch_size,
    encoded_gradients,
    one_steps_views,
    step_count,
    step_outputs,
    step_pace,
    step_views,
)
from lumigrad.client.training.exchange import Request, TrainReply
from lumigrad.client.training.results import Images, StepResult
from lumigrad.client.training.stream import ImageFormat, TrainingStream, step_message
from lumigrad.client.transport.call import Cancellation
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.handle import Scene, SceneHandle
from lumigrad.client.wire.cameras import camera_of
from lumigrad.client.wire.scenes import scene_of
from lumigrad.client.workers.scene_store import SceneStore
from lumigrad.v1 import training_pb2

# Enough for steps of a few milliseconds over a link with a latency of 50 ms.
_IN_FLIGHT = 32
# The number of requests for the steps in flight: while the worker processes one, the next are in transit.
_REQUESTS_IN_FLIGHT = 4
# Limit of the gradients that are kept for resending if a worker dies; beyond it, a snapshot is requested.
_HISTORY_BYTES = 512 << 20


class Trainer(Staying):
    """Optimises a scene where it is stored. Not thread-safe.

    A training survives broken connections and, if the worker has a spool, the worker's death: it resumes from the last
    snapshot and repeats the steps since then. A request that the worker refuses is dropped, together with the steps
    sent after it; the next call continues after the completed steps.
    """

    def __init__(
        self,
        stream: TrainingStream,
        store: SceneStore,
        has_loss: bool,
        snapshot_every: int = 0,
        sizes: Sizes | None = None,
    ) -> None:
        """Creates a trainer for `Client.trainer`. `sizes` are those of the views; None: only the worker knows them."""
        self._stream = stream
        self._store = store
        self._has_loss = has_loss
        self._sizes = sizes
        self._next = int(stream.started.step)
        # The step after the last one sent, and whether that one needs gradients from the client.
        self._sent, self._is_own = self._next, False
        self._has_ended = False
        # Images that arrived while the trainer waited for another reply.
        self._early: deque[Images] = deque()
        # Pending results of steps whose gradients were sent.
        self._late: deque[LateResult] = deque()
        self._snapshot_every = snapshot_every
        # The limit of batches in flight, and the last step whose gradients were sent.
        self._ahead, self._applied = 1, -1
        # The unfinished loop over batches.
        self._loop: object = None

    def __enter__(self) -> Trainer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Ends the training; after an error the worker keeps it, and a log message explains how to resume it."""
        if error is not None and not self._has_ended and not isinstance(error, TrainingHeld | TrainingLost):
            self._stream.log_how_to_resume()
        self.close(finish=error is None)

    def __del__(self) -> None:
        """Ends the call of an unclosed training that nobody can use any more, so that it will expire on the worker."""
        if not getattr(self, "_has_ended", True) and self._stream.abandon():
            text = "was not closed: the worker keeps it and its scene for a while; use `with`, or call close()"
            warnings.warn(f"training {self.training_id} {text}", ResourceWarning, stacklevel=2, source=self)

    def _cancelled_by(self, cancellation: Cancellation | None) -> Trainer:
        """Returns this trainer, whose calls `cancellation` cancels from now on; None: they cannot be cancelled."""
        self._stream.cancellation = cancellation
        return self

    @property
    def training_id(self) -> str:
        """The id of the training on the worker."""
        return self._stream.started.training_id

    @property
    def lease(self) -> str:
        """The secret with which `Client.resume_trainer` resumes the training; keep it private."""
        return self._stream.started.lease

    @property
    def step_number(self) -> int:
        """The number of the next step."""
        return self._next

    @property
    def snapshot_step(self) -> int | None:
        """The step of the newest snapshot when the training was started or last resumed; None: there was none."""
        started = self._stream.started
        return int(started.snapshot_step) if started.HasField("snapshot_step") else None

    @property
    def resumed(self) -> int:
        """How often the training was resumed after a connection or a worker was lost."""
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
        pace: float = 1.0,
    ) -> Iterator[StepResult]:
        """Runs steps with the training's own loss, several in flight at a time.

        Args:
            count: the number of steps.
            batch: the number of views of a step, at most that of all views; the worker chooses them, each once before
                any is repeated.
            views: for each of the `count` steps the numbers of its views, instead of `batch`.
            outputs: images to return: "color", "alpha", "depth", "expected_depth"; for surfels also "median_depth",
                "normals", "distortion", "surface_normals".
            image_format: wire format of the images.
            in_flight: maximum number of steps in flight. Steps already sent are done even if the loop ends early.
            pace: speed of the schedules of rates, spherical harmonics, density control and surface losses, from 1e-6 to
                1e6: every number of steps in them is divided by it. To finish a training in half its steps, pass 2.

        Yields:
            The result of each step, in order.

        Raises:
            InvalidArgument: an argument is wrong, or the training has no loss.
            TrainingHeld: another client has resumed the training.
            TrainingLost: the worker no longer has it, or steps that only another client could repeat.

        Example:
            for step in trainer.steps(3, batch=2):
                print(step.number, step.loss, step.psnr)
        """
        if not self._has_loss:
            text = "expected a training with target images and a loss; use `batches` without them"
            raise InvalidArgument.of("loss", text)
        limit = min(whole_number("in_flight", in_flight, 1, 1 << 16), int(self._stream.started.max_in_flight))
        shown, size = step_outputs(outputs, image_format), batch_size(batch)
        chosen, speed = step_views(views, step_count(count), self._sizes), step_pace(pace)
        self._clear_up()
        first = sent = self._next
        last = first + len(chosen)
        run = 1 if shown else min(limit // _REQUESTS_IN_FLIGHT, int(self._stream.started.most_steps))
        while self._next < last:
            while sent < last and (count := min(max(run, 1), last - sent)) <= limit - (sent - self._next):
                views_of_run = _alike(chosen[sent - first : sent - first + count])
                self._send_steps(sent, views_of_run, size, shown, image_format, speed)
                sent += len(views_of_run)
            yield self.receive_step(self._images() if shown else None)

    def step(self, /, views: Sequence[int] = (), **options: Any) -> StepResult:
        """Runs one step.

        Args:
            views: the views to train with; empty: the worker chooses.
            options: the options of `steps`, except `views`.

        Returns:
            The result of the step.

        Raises:
            LumigradError: as for `steps`.

        Example:
            step = trainer.step([0], outputs=("color",))
        """
        return next(self.steps(1, views=[one_steps_views(views, self._sizes)], **options))

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
        """Renders the views of each step, for a loss that the client computes: call `Batch.apply` on each batch.

        Args:
            count: the number of steps.
            batch: the number of views of a step, which the worker chooses.
            views: for each of the `count` steps the numbers of its views, instead of `batch`.
            outputs: images, as for `steps`.
            image_format: wire format of the images.
            in_flight: 1: images include all earlier steps, and `apply` returns when the step is done. 2 to 4: the next
                images are rendered and transferred meanwhile, and miss up to `in_flight` - 1 earlier steps.

        Yields:
            The images of each step, to be completed by `apply`.

        Raises:
            InvalidArgument: an argument is wrong.
            LumigradError: the previous batch was not applied; or as for `steps`.

        Example:
            for batch in trainer.batches(2, views=[[0], [1]]):
                batch.apply(color=2 * (batch.color - photographs[batch.views[0]]))
        """
        limit = whole_number("in_flight", in_flight, 1, 4)
        shown, size = step_outputs(outputs, image_format, needs_one=True), batch_size(batch)
        chosen = step_views(views, step_count(count), self._sizes)
        self._ahead = limit
        self._clear_up()
        first = number = sent = self._next
        last = number + len(chosen)
        self._loop = loop = object()
        try:
            while number < last:
                while sent < last and sent - number < limit and not (sent > number and self._rests_before(sent)):
                    self.send_step(sent, chosen[sent - first], size, shown, image_format, own_loss=True)
                    sent += 1
                self._stream.check_held()
                yield Batch(self, self._images())
                if self._applied != number:
                    raise LumigradError("the batch before was not applied: call its apply(color=…) in each round")
                number += 1
                if number == sent and self._stream.history_bytes > _HISTORY_BYTES:
                    self.snapshot()
            self.settle()
        finally:
            if self._loop is loop:
                self._loop = None

    def _rests_before(self, number: int) -> bool:
        """Whether a step must not be sent while another one lacks gradients, because a snapshot comes before it."""
        is_due = self._snapshot_every > 0 and number % self._snapshot_every == 0
        return is_due or self._stream.history_bytes > _HISTORY_BYTES

    def publish(self) -> SceneHandle:
        """Stores the current parameters as the next version of the scene; returns its handle.

        Handles of earlier versions then raise `VersionMismatch`. If the training began with values instead of a handle,
        and the same content was put another time, that scene stays unchanged, and the parameters are stored as a new
        scene.

        Raises:
            SceneNotFound: the scene was deleted, evicted or lost. The training continues, and
                `client.put(trainer.scene())` stores its parameters as a new scene.
            VersionMismatch: the scene was updated by another call.
            ResourceExhausted: the worker has no memory for the version, or cannot write it to its spool. The scene is
                unchanged.

        Example:
            scene = trainer.publish()
        """
        self._prepare()
        self._stream.send(Request(training_pb2.TrainRequest(publish=training_pb2.Publish())))
        try:
            published = self._received("published").message.published
        except SceneNotFound as error:
            text = f"scene {error.scene_id}, whose next version this would be, was deleted, evicted or lost"
            remedy = "the training still has the parameters: client.put(trainer.scene()) stores them"
            raise SceneNotFound(f"{text}; {remedy}", scene_id=error.scene_id) from error
        return self._store.handle(published.scene, self._stream.call())

    def scene(self) -> Scene:
        """Downloads the current scene. The stored scene and its handles do not change; see `publish`.

        Raises:
            LumigradError: as for `steps`.

        Example:
            fitted = trainer.scene()
        """
        self._prepare()
        self._stream.send(Request(training_pb2.TrainRequest(get_scene=training_pb2.GetScene())))
        reply = self._received("scene")
        return scene_of(reply.message.scene.scene, reply.reader)

    def snapshot(self) -> int:
        """Writes a snapshot into the worker's spool; returns the number of the next step.

        Raises:
            LumigradError: the worker has no spool, or it is full; or as for `steps`.

        Example:
            next_step = trainer.snapshot()
        """
        self._prepare()
        self._stream.send(Request(training_pb2.TrainRequest(snapshot=training_pb2.Snapshot())))
        return int(self._received("snapshotted").message.snapshotted.step)

    def cameras(self) -> tuple[Camera, ...]:
        """Downloads the current cameras of all views, with refined poses and lenses.

        Raises:
            LumigradError: as for `steps`.

        Example:
            refined = trainer.cameras()[0].view_matrix
        """
        return tuple(camera_of(view.camera) for view in self.views()[0])

    def views(self) -> tuple[tuple[training_pb2.TrainingView, ...], Array | None]:
        """Downloads the current views, with refined cameras, and the exposures [V, 3, 4] if they are optimised.

        Raises:
            LumigradError: as for `steps`.

        Example:
            views, exposures = trainer.views()
        """
        self._prepare()
        self._stream.send(Request(training_pb2.TrainRequest(get_views=training_pb2.GetViews())))
        reply = self._received("views")
        found = reply.message.views
        exposures = reply.reader.read(found.exposures, "exposures") if found.HasField("exposures") else None
        return tuple(found.views), exposures

    def close(self, *, finish: bool = True) -> None:
        """Ends the training; does nothing if it has ended.

        Args:
            finish: remove the training from the worker; unpublished changes are lost. False: the worker keeps it for a
                while.

        Raises:
            TrainingHeld: another client has resumed the training and will end it.

        Example:
            trainer.close(finish=False)  # `Client.resume_trainer` goes on with it
        """
        has_ended, self._has_ended = self._has_ended, True
        if not has_ended and finish:
            # After other errors, the training expires by itself.
            with suppress(LumigradError):
                try:
                    self._finish()
                except (TrainingHeld, TrainingLost):
                    # Another client has resumed it and will end it.
                    raise
                except LumigradError:
                    # An error ended the call, not the training.
                    self._stream.restart()
                    self._finish()
        self._stream.close()

    def _finish(self) -> None:
        self._recover(is_ending=True)
        self._stream.send(Request(training_pb2.TrainRequest(finish=training_pb2.Finish())))
        self._received("finished")

    def apply(self, number: int, gradients: Mapping[str, Encoded]) -> LateResult:
        """Sends the gradients of a batch, encoded as in `Request.gradients`; called by `Batch.apply`."""
        self._recover()
        self._stream.check_held()
        result = LateResult(number, self)
        message = training_pb2.TrainRequest(gradients=training_pb2.StepGradients(number=number))
        self._stream.send(Request(message, number, gradients=gradients))
        self._late.append(result)
        if self._ahead == 1:
            self.settle()
        self._applied = result.number
        return result

    def settle(self, awaited: LateResult | None = None) -> None:
        """Waits for the results of all gradients that were sent, or of those up to `awaited`."""
        self._recover()
        while self._late and not (awaited is not None and awaited.is_known):
            self.receive_step()

    def _recover(self, *, is_ending: bool = False) -> None:
        """Continues after the worker has refused a request and thereby ended the stream.

        Raises LumigradError if the trainer is closed, unless it `is_ending`.
        """
        if self._has_ended and not is_ending:
            text = "this trainer is closed; start another, or continue a training that was closed with finish=False by"
            raise LumigradError(f"{text} `Client.resume_trainer`")
        if not self._stream.is_refused:
            return
        number = self._stream.drop_refused()
        if number is not None:
            self._sent = self._next = number
            self._early.clear()
            while self._late:
                self._late.popleft().is_refused = True

    def _prepare(self) -> None:
        """Discards images that an ended loop over batches has left without gradients, which block the worker."""
        self._recover()
        if self._is_own and self._loop is None:
            self._clear_up()

    def _clear_up(self) -> None:
        """Cleans up after a loop that ended early: completes steps, and discards images without gradients."""
        self._recover()
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
        pace: float = 0.0,
    ) -> None:
        """Sends a step without waiting; `receive_step` returns its result. `steps` is simpler to use."""
        step = step_message(number, views, batch, outputs, image_format, own_loss, pace=pace)
        replies = 1 if own_loss or not outputs else 2
        self._stream.send(Request(training_pb2.TrainRequest(step=step), number, replies))
        self._sent, self._is_own = number + 1, own_loss

    def _send_steps(
        self,
        number: int,
        views: Sequence[Sequence[int]],
        batch: int,
        outputs: tuple[str, ...],
        image_format: str,
        pace: float,
    ) -> None:
        """Sends steps with these views, several of them in one request."""
        if len(views) == 1:
            self.send_step(number, views[0], batch, outputs, image_format, pace=pace)
            return
        flat = [each for of_step in views for each in of_step]
        step = step_message(number, flat, batch, outputs, image_format, False, len(views), pace)
        self._stream.send(Request(training_pb2.TrainRequest(step=step), number, len(views)))
        self._sent, self._is_own = number + len(views), False

    def _images(self) -> Images:
        if self._early:
            return self._early.popleft()
        reply = self._received("images")
        return Images(reply.message.images, reply.reader)

    def receive_step(self, images: Images | None = None) -> StepResult:
        """Waits for the result of the oldest step in flight and returns it."""
        return self._record(self._received("done"), images)

    def _record(self, reply: TrainReply, images: Images | None) -> StepResult:
        message = reply.message
        self._next = int(message.done.number) + 1
        result = StepResult.of(message.done, images, Timings.of(message.timings, 0.0))
        if self._late:
            self._late.popleft().set_result(result)
        return result

    def _received(self, kind: str) -> TrainReply:
        while (reply := self._stream.receive()).kind != kind:
            if reply.kind == "done":
                # A step of an earlier loop that did not wait for its result.
                self._record(reply, None)
            elif reply.kind == "images":
                self._early.append(Images(reply.message.images, reply.reader))
        return reply


def _alike(views: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
    """Returns the first steps with equal numbers of views, as one request needs."""
    same = next((index for index, each in enumerate(views) if len(each) != len(views[0])), len(views))
    return views[:same]


class LateResult:
    """The pending result of a step; its attributes are those of `StepResult`, and reading one waits for the result.

    Attributes:
        number: the number of the step; available immediately.
    """

    def __init__(self, number: int, trainer: Trainer) -> None:
        """Creates a pending result, which `trainer` passes to `set_result`."""
        self.number = number
        self._trainer = trainer
        self._result: StepResult | None = None
        # Whether the step was dropped because the worker refused its gradients or those of an earlier step.
        self.is_refused = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.result(), name)

    def result(self) -> StepResult:
        """Waits for the result and returns it.

        Raises:
            LumigradError: as for `Trainer.steps`.

        Example:
            loss = late.result().loss
        """
        if self._result is None and not self.is_refused:
            self._trainer.settle(self)
        if self._result is None:
            text = f"step {self.number} was not done: the worker has refused its gradients, or those of a step before"
            raise LumigradError(text)
        return self._result

    @property
    def is_known(self) -> bool:
        """Whether `result` returns without waiting."""
        return self._result is not None

    def _cancelled_by(self, cancellation: Cancellation | None) -> LateResult:
        """Returns this result; `cancellation` can end waiting for it from now on."""
        self._trainer._cancelled_by(cancellation)
        return self

    def set_result(self, result: StepResult) -> None:
        """Sets the result."""
        self._result = result


class Batch:
    """The images of one step, which is completed by the gradients of a loss.

    Attributes:
        images: the requested images; also attributes of the batch: `batch.color` [C, H, W, K].
        views: the views that were rendered.
    """

    def __init__(self, trainer: Trainer, images: Images) -> None:
        self._trainer = trainer
        self.images = images
        self.views = images.views

    def __getattr__(self, name: str) -> Array:
        return getattr(self.__dict__["images"], name)  # type: ignore[no-any-return]

    def apply(self, /, *, gradient_format: WireFormat = "float32", **gradients: Any) -> LateResult:
        """Completes the step. With more than one step in flight this does not wait; reading the result does.

        Args:
            gradient_format: wire format of the gradients.
            gradients: dL/d output by the output's name, with the shape of the output.

        Returns:
            The result of the step, perhaps still pending.

        Raises:
            InvalidArgument: a gradient has the wrong shape, or belongs to an output that the batch lacks.
            LumigradError: as for `Trainer.steps`.

        Example:
            result = batch.apply(color=np.ones_like(batch.color), gradient_format="float16")
        """
        return self._trainer.apply(self.images.number, encoded_gradients(self.images, gradients, gradient_format))

    def _cancelled_by(self, cancellation: Cancellation | None) -> Batch:
        """Returns this batch, whose calls `cancellation` can cancel from now on."""
        self._trainer._cancelled_by(cancellation)
        return self
