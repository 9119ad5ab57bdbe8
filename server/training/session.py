"""A client's session with a training: answers its requests in order."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod, sqrt
from typing import TypeVar

import torch

from lumigrad.protos import dtypes
from lumigrad.protos.dtypes import Array
from lumigrad.protos.streams import frames_of
from lumigrad.protos.tensors import ALIGNMENT, PayloadWriter
from lumigrad.protos.wire import Frame
from lumigrad.server.core.accounts import Reservation
from lumigrad.server.core.errors import StepMismatchError
from lumigrad.server.core.limits import require
from lumigrad.server.core.record import StageTimes
from lumigrad.server.core.streams import named_tensors
from lumigrad.server.device.memory import Cost
from lumigrad.server.device.transfer import Download
from lumigrad.server.engines.content import Shapes, shapes_of, uploader
from lumigrad.server.engines.gradients import TORCH_DTYPES
from lumigrad.server.engines.requests import checked_gradients
from lumigrad.server.storage.tenants import Runtime
from lumigrad.server.storage.trainings import Training, counted
from lumigrad.server.training import snapshots
from lumigrad.server.training.images import Planned, Rendered, noted, render
from lumigrad.server.training.publishing import publish, scene_frames
from lumigrad.server.training.requests import Replies, Request, Requests
from lumigrad.server.training.resident import ResidentSteps
from lumigrad.server.training.run_report import RunReport
from lumigrad.server.training.state import TrainingState
from lumigrad.server.training.step import Done, StepReport, apply, step
from lumigrad.v1 import training_pb2

T = TypeVar("T")

# The most requests that a client may have in flight.
MAX_IN_FLIGHT = 64  # The length of `TrainingState.recent_replies`.
# The most steps of one request.
MOST_STEPS = 32
# The limits of `Step.pace`.
_SLOWEST, _FASTEST = 1e-6, 1e6
# The most steps that may wait for their gradients: each holds a forward state.
_MOST_PENDING = 4


class Session:
    """Answers the requests of one call."""

    def __init__(self, training: Training[TrainingState], runtime: Runtime, requests: Requests) -> None:
        self._training = training
        self._state = training.state
        self._runtime = runtime
        self._requests = requests
        # Steps whose replies have not been made, in order: one, or two while the reply to the first is being made.
        self._late: deque[_Queued] = deque()
        # Results collected for one reply, while further steps of the same request follow.
        self._told: list[training_pb2.StepDone] = []
        self._told_for: Request | None = None
        # Steps whose images were sent, with their reservations, by number.
        self._pending: OrderedDict[int, tuple[Rendered, Reservation]] = OrderedDict()

    def close(self) -> None:
        """Release the steps whose gradients have not arrived."""
        while self._pending:
            self._pending.popitem()[1][1].release()
        # The replies are kept for the client's next call, which asks for those that it has not received.
        with suppress(Exception):
            for late in self._late:
                self._record(late, snapshotted=False)

    def answer(self) -> Replies:
        """Yield the replies to all requests.

        If the next step has been requested, the reply to a step is made once that one is queued on the device.
        """
        try:
            for request in self._requests:
                yield from self._answer(request)
                if not self._requests.is_next_here:
                    yield from self._report()
            yield from self._report()
        except Exception:
            # The last step is done, whatever is wrong with a later request.
            with suppress(Exception):
                yield from self._report()
                yield from self._reply_told()
            raise

    def _answer(self, request: Request) -> Replies:
        require(request.kind in _ANSWERS, "kind", f"one of {', '.join(_ANSWERS)}", request.kind)
        # No request is executed once another call has taken the training.
        request.part.check()
        self._runtime.trainings.check_kept(self._training)
        if request.kind != "step":
            yield from self._report()
        with request.part.by_lane(request.message.lane):
            yield from _ANSWERS[request.kind](self, request)
        if all(late.request is not request for late in self._late):
            self._requests.close(request)

    def _step(self, request: Request) -> Replies:
        asked, state = request.message.step, self._state
        expected = state.step + len(self._pending)
        if asked.number != expected:
            raise StepMismatchError(expected, asked.number)
        _check_dtype(asked)
        require(asked.count <= MOST_STEPS, "step.count", f"at most {MOST_STEPS}", asked.count)
        if asked.count:
            require(not asked.own_loss, "step.count", "0 with own_loss", asked.count)
            require(not asked.outputs, "step.count", "0 with outputs", asked.count)
        pace = asked.pace or 1.0
        require(_SLOWEST <= pace <= _FASTEST, "step.pace", f"0, or {_SLOWEST:g} to {_FASTEST:g}", asked.pace)
        require(not (asked.own_loss and asked.pace), "step.pace", "0 with own_loss", asked.pace)
        steps, chosen = self._views(asked)
        if asked.own_loss:
            state.keep_pace(1.0)
            yield from self._own_loss(request, steps[0], chosen)
            return
        self._require_none_pending("step.own_loss")
        # Steps that idle rows catch up on later would use the rates of the new pace.
        is_free = state.blocks is None or state.plan.optimizer.visible_only
        require(is_free or pace == 1.0, "step.pace", "0 or 1 with pool_bytes and without visible_only", asked.pace)
        state.keep_pace(pace)
        loss = state.plan.loss
        require(loss is not None, "step.own_loss", "true: the training has no loss of its own", False)
        require(state.views.has_target_images, "step.own_loss", "true: some views have no target image", False)
        yield from self._own_steps(request, steps, chosen)

    def _own_steps(self, request: Request, steps: list[list[int]], chosen: int) -> Replies:
        """Make steps with the training's own loss: in runs without Python where possible, else one by one."""
        asked = request.message.step
        while steps:
            # Each step is checked just before it is made, so that those before an invalid step are made.
            views = steps[0]
            self._state.views.check(views, "step.views")
            images = None
            done = None if asked.outputs else self._run_resident(request, steps, chosen)
            if done is None:
                images, done = self._one_step(request, views, chosen)
            del steps[: done.count]
            done = replace(done, is_last=not steps)
            self._late.append(done)
            yield from self._report(keep=1)
            if images is not None or self._is_snapshot_due(done.last) or done.download.is_complete:
                # Make the reply first, because the client may disconnect while it receives the images.
                reply = list(self._reply_done(self._late[0]))
                self._late.popleft()
                if images is not None:
                    yield from _image_frames(views, images, request)
                yield from reply

    def _run_resident(self, request: Request, steps: list[list[int]], chosen: int) -> _Queued | None:
        """Make some of the next steps without Python; None if that is not possible for the next one."""
        state, runtime = self._state, self._runtime
        if state.resident is None:
            state.resident = ResidentSteps(runtime.transfer.step_machine)
        resident, first = state.resident, state.step
        if resident.is_controlled(state, steps[0]):
            return self._control(request, steps[0], chosen)
        views = steps[: resident.length(state, steps)]
        if not views:
            return None
        cost = self._admitted(resident.cost(state, views, runtime.limits), request)
        report = resident.run(state, views, cost, chosen, runtime.executor, runtime.memory, request.part)
        return None if report is None else _Queued(request, first, report, report)

    def _control(self, request: Request, views: list[int], chosen: int) -> _Queued:
        """Make a step in which density control is due."""
        state, runtime, number = self._state, self._runtime, self._state.step
        cost = self._admitted(state.resident.control_cost(state, views, runtime.limits), request)

        def work() -> _Queued:
            report = state.resident.control(state, views, chosen, runtime.limits, request.part)
            runtime.executor.leave(report, self._training.training_id)
            return _Queued(request, number, report, report)

        return self._run(work, request, cost)

    def _one_step(self, request: Request, views: list[int], chosen: int) -> tuple[Mapping[str, Array] | None, _Queued]:
        state, names, number = self._state, tuple(request.message.step.outputs), self._state.step
        loss = state.plan.loss
        assert loss is not None
        self._settle(request)
        planned = self._planned(views, (*loss.at(number).outputs, *names), chosen)
        device = self._runtime.transfer.device
        nbytes = planned.forward_bytes(device) + planned.backward_bytes(device) + state.copied_bytes
        cost = self._admitted(nbytes, request, planned, names)

        def work() -> tuple[Mapping[str, Array] | None, _Queued]:
            # The images are downloaded before the step changes anything: afterwards nothing may fail without a reply to
            # the client.
            images, report = step(
                state, planned, request.part, lambda it: self._download(it, names, request) if names else None
            )
            return images, self._queued(request, number, report)

        return self._run(work, request, cost)

    def _own_loss(self, request: Request, views: list[int], chosen: int) -> Replies:
        asked, state = request.message.step, self._state
        yield from self._report()
        require(bool(asked.outputs), "step.outputs", "at least one output with own_loss", "none")
        # Rows of a step in blocks stay in the pool until its gradients arrive.
        most = _MOST_PENDING if state.blocks is None else 1
        require(len(self._pending) < most, "step", f"at most {most} steps that wait for gradients", "more")
        names = tuple(asked.outputs)
        self._settle(request)
        planned = self._planned(views, names, chosen)
        nbytes = planned.forward_bytes(self._runtime.transfer.device)
        cost = self._admitted(nbytes, request, planned, names)
        # The forward state counts as the training's memory until its gradients arrive.
        reserved = self._runtime.trainings.reserve(nbytes)

        def work() -> tuple[Rendered, Mapping[str, Array]]:
            rendered = render(state, planned, request.part)
            images = self._download(rendered, names, request)
            return replace(rendered, times=noted(rendered.times, request.part)), images

        try:
            with counted(nbytes):
                working = replace(cost, bytes=cost.bytes - nbytes)
                rendered, images = self._runtime.executor.run(work, request.part, working)
        except BaseException:
            reserved.release()
            raise
        self._pending[asked.number] = rendered, reserved
        reserved.resize(rendered.bytes)
        self._requests.expect(
            asked.number, sum(4 * prod(shape) + ALIGNMENT for shape in _gradient_shapes(rendered).values())
        )
        yield from _image_frames(views, images, request)

    def _gradients(self, request: Request) -> Replies:
        brought = request.message.gradients
        oldest = next(iter(self._pending), None)
        if brought.number != oldest:
            raise StepMismatchError(self._state.step if oldest is None else oldest, brought.number)
        rendered, reserved = self._pending[brought.number]
        field = "gradients.output_gradients"
        tensors = checked_gradients(brought.output_gradients, _gradient_shapes(rendered), field)
        # Gradients are not copied from shared memory: `apply` checks that they are still leased before it changes
        # anything.
        reader = request.part.lane.reader(request.payload, 0, self._runtime.payload_memory.allocator(request.part))
        upload = uploader(tensors, reader, self._runtime.transfer, field, in_place=True)

        def work() -> _Queued:
            with request.part.times.stage("upload"):
                upstream = upload()
                # Everything must have been read before `apply` checks the lease.
                self._runtime.transfer.finish()
            report = apply(self._state, rendered, upstream, None, request.part)
            return self._queued(request, brought.number, report)

        nbytes = rendered.planned.backward_bytes(self._runtime.transfer.device) + self._state.copied_bytes
        cost = self._admitted(nbytes, request)
        done = self._run(work, request, cost)
        del self._pending[brought.number]
        reserved.release()
        yield from self._reply_done(done)

    def _publish(self, request: Request) -> Replies:
        self._require_none_pending("publish")
        info = publish(self._training, self._runtime, request.part)
        reply = training_pb2.TrainReply(published=training_pb2.Published(scene=info, step=self._state.step))
        yield framed(reply, request)

    def _get_scene(self, request: Request) -> Replies:
        self._require_none_pending("get_scene")
        yield from scene_frames(self._state, self._runtime, request)

    def _snapshot(self, request: Request) -> Replies:
        self._require_none_pending("snapshot")
        nbytes = snapshots.write(self._training, self._runtime, request.part)
        require(nbytes > 0, "snapshot", "a worker with a spool (--spool)", "none")
        snapshotted = training_pb2.Snapshotted(step=self._state.step, bytes=nbytes)
        yield framed(training_pb2.TrainReply(snapshotted=snapshotted), request)

    def _is_snapshot_due(self, number: int) -> bool:
        """Return whether a snapshot follows a step; the reply to such a step is not delayed."""
        every = self._state.plan.message.snapshot_every
        return every > 0 and (number + 1) % every == 0 and not self._pending

    def _get_views(self, request: Request) -> Replies:
        state = self._state
        self._settle(request)
        reply, payload = training_pb2.TrainReply(), PayloadWriter()
        for view, camera in zip(state.views.messages, state.cameras(range(len(state.views))), strict=True):
            reply.views.views.add(
                target=view.target,
                calibration=view.calibration if view.HasField("calibration") else None,
                camera=camera,
            )
        if state.exposures is not None:
            values, transfer = state.exposures.values, self._runtime.transfer
            cost = Cost(payload_bytes=values.nbytes, is_repeatable=True)
            self._runtime.payload_memory.reserve(values.nbytes, request.part)
            array = self._runtime.executor.run(lambda: transfer.download([values]), request.part, cost)[0]
            reply.views.exposures.CopyFrom(payload.add(array))
        reply.timings.CopyFrom(request.part.times.message())
        yield from frames_of(reply, payload)

    def _finish(self, request: Request) -> Replies:
        self._require_none_pending("finish")
        # Snapshots are deleted first: a call that finds no training looks for snapshots.
        snapshots.forget(self._training, self._runtime)
        self._runtime.trainings.forget(self._training)
        reply = training_pb2.TrainReply()
        reply.finished.SetInParent()
        yield framed(reply, request)

    def _settle(self, request: Request) -> None:
        """Copy cameras to the host that steps have moved on the device."""
        if self._state.refinement.is_ahead:
            self._runtime.executor.run(self._state.settle, request.part)

    def _planned(self, views: list[int], outputs: Sequence[str], chosen: int) -> Planned:
        return Planned.of(self._state, views, tuple(dict.fromkeys(outputs)), self._runtime.limits, "step", chosen)

    def _admitted(
        self, nbytes: int, request: Request, planned: Planned | None = None, names: Sequence[str] = ()
    ) -> Cost:
        """Return the cost of work that must not be repeated; raises DeviceMemoryError if the device cannot hold it.

        Reserves memory for the images of `planned` that are sent.
        """
        received = request.message.payload_bytes
        sent = 0 if planned is None else planned.plan.image_bytes(set(names))
        sequence = self._training.training_id
        cost = Cost(bytes=nbytes + received, payload_bytes=received + sent, sequence=sequence)
        self._runtime.memory.check(cost, self._state.reservation.bytes)
        self._runtime.payload_memory.reserve(sent, request.part)
        return cost

    def _run(self, work: Callable[[], T], request: Request, cost: Cost) -> T:
        """Run work that may change the number of primitives."""
        try:
            return self._runtime.executor.run(work, request.part, cost)
        finally:
            self._state.reservation.resize(self._state.parameters.count)

    def _views(self, asked: training_pb2.Step) -> tuple[list[list[int]], int]:
        """Return the views of each step that is asked for, and how many of them the worker chose."""
        state, count = self._state, asked.count or 1
        if asked.views:
            size, rest = divmod(len(asked.views), count)
            require(rest == 0, "step.views", f"as many for each of {count} steps", len(asked.views))
            require(size > 0, "step.views", f"at least one for each of {count} steps", len(asked.views))
            steps = [list(asked.views[at : at + size]) for at in range(0, len(asked.views), size)]
            state.views.check(steps[0], "step.views")
            return steps, 0
        require(asked.batch >= 1, "step.batch", "at least 1 where no views are named", asked.batch)
        limit = f"at most {self._runtime.limits.cameras} views (the worker's --max-cameras)"
        require(asked.batch <= self._runtime.limits.cameras, "step.batch", limit, asked.batch)
        known = len(state.views)
        require(asked.batch <= known, "step.batch", f"at most {known}, the number of views", asked.batch)
        is_fit = asked.batch == 1 or state.views.is_uniform
        require(is_fit, "step.batch", "1, for views are of several sizes", asked.batch)
        loss = None if asked.own_loss else state.plan.loss
        missing = "" if loss is None or asked.batch == 1 else state.views.only_some_have(loss.weights)
        require(not missing, "step.batch", f"1, for only some target images have a {missing}", asked.batch)
        # `state.chosen` counts the views of pending steps only once these are done.
        position = state.chosen + sum(waiting.planned.chosen for waiting, _ in self._pending.values())
        places = range(position, position + count * asked.batch, asked.batch)
        return [state.views.chosen(state.plan.message.seed, place, asked.batch) for place in places], asked.batch

    def _require_none_pending(self, field: str) -> None:
        require(not self._pending, field, "no step that waits for its gradients", len(self._pending))

    def _download(self, rendered: Rendered, names: tuple[str, ...], request: Request) -> Mapping[str, Array]:
        dtype = request.message.step.output_dtype
        with request.part.times.stage("download"):
            images = [converted(rendered.outputs[name], dtype) for name in names]
            download = self._runtime.transfer.start_download(images, [request.part.lane] * len(images))
            download.wait()
            return dict(zip(names, download.arrays, strict=True))

    def _queued(self, request: Request, number: int, report: StepReport) -> _Queued:
        """Start to download a step's numbers; called on the device's thread."""
        return _Queued(request, number, report, self._leave(report.numbers))

    def _leave(self, numbers: Sequence[torch.Tensor]) -> Download:
        """Download numbers; until they have arrived, let only steps of this training run."""
        download = self._runtime.transfer.start_download(numbers)
        self._runtime.executor.leave(download, self._training.training_id)
        return download

    def _report(self, keep: int = 0) -> Replies:
        """Yield the delayed replies to steps, except for the last `keep`."""
        while len(self._late) > keep:
            # No later step is reported if this fails: the client takes replies in order.
            replies = list(self._reply_done(self._late[0]))
            late = self._late.popleft()
            yield from replies
            if late.is_last:
                self._requests.close(late.request)

    def _reply_done(self, done: _Queued) -> Replies:
        """Yield the replies to steps once their numbers have arrived, and write the snapshot due after the last one.

        None as long as further steps of their request follow, unless a snapshot is written.
        """
        # The snapshot includes this reply, because the worker may die before sending it.
        told = self._record(done, snapshotted=self._is_snapshot_due(done.last))
        # Mark the scene as used, so that other scenes are evicted first.
        self._runtime.scenes.touch(self._state.scene_id)
        if told[-1].snapshotted:
            written = False
            try:
                written = snapshots.write_due(self._training, self._runtime, done.request.part)
            finally:
                told[-1].snapshotted = written
        if not done.request.message.step.count:
            yield framed(training_pb2.TrainReply(done=told[0]), done.request)
            return
        self._told += told
        self._told_for = done.request
        if done.is_last or told[-1].snapshotted:
            yield from self._reply_told()

    def _reply_told(self) -> Replies:
        """Yield the reply with the collected results."""
        told, self._told = self._told, []
        if told and self._told_for is not None:
            yield framed(training_pb2.TrainReply(steps=training_pb2.StepsDone(done=told)), self._told_for)

    def _record(self, done: _Queued, *, snapshotted: bool) -> list[training_pb2.StepDone]:
        """Make the messages about steps, and keep them in case the client does not receive them."""
        times = done.request.part.times
        # Not repeatable, because the step's kernels may have broken the device.
        self._runtime.executor.complete(done.download, done.request.part, is_repeatable=False)
        told = [done_message(number, result) for number, result in enumerate(done.results(times), done.number)]
        told[-1].snapshotted = snapshotted
        self._state.recent_replies += told
        return told


# Not kept by a session, which would then keep itself, and the training's memory, until the garbage collector runs.
_ANSWERS: Mapping[str, Callable[[Session, Request], Replies]] = {
    "step": Session._step,
    "gradients": Session._gradients,
    "publish": Session._publish,
    "get_scene": Session._get_scene,
    "snapshot": Session._snapshot,
    "get_views": Session._get_views,
    "finish": Session._finish,
}


@dataclass(frozen=True)
class _Queued:
    """Steps that have changed the training and whose numbers are being downloaded.

    Attributes:
        number: The number of the first step.
        download: The download of the numbers.
        is_last: Whether these are the last steps of the request.
    """

    request: Request
    number: int
    report: StepReport | RunReport
    download: Download | RunReport
    is_last: bool = True

    @property
    def count(self) -> int:
        """The number of steps."""
        return 1 if isinstance(self.report, StepReport) else len(self.report.reports)

    @property
    def last(self) -> int:
        """The number of the last step."""
        return self.number + self.count - 1

    def results(self, times: StageTimes) -> list[Done]:
        """Return the result of each step; adds the kernels' times."""
        if isinstance(self.report, RunReport):
            times.add_kernel(self.report.milliseconds)
            return self.report.read()
        assert isinstance(self.download, Download)
        for kernels in self.report.times:
            times.add_kernel(kernels.milliseconds())
        return [self.report.read(self.download.arrays)]


def _gradient_shapes(rendered: Rendered) -> Shapes:
    """Return the shapes of the gradients that a client may send for a step."""
    known = rendered.planned.plan.upstream_shapes
    return {name: shape for name, shape in shapes_of(rendered.outputs).items() if name in known}


def _check_dtype(asked: training_pb2.Step) -> None:
    """Raise an InvalidArgumentError for an unsupported image dtype."""
    limit = "DTYPE_FLOAT32, DTYPE_FLOAT16, DTYPE_BFLOAT16 or DTYPE_UINT8"
    require(
        asked.output_dtype in (*TORCH_DTYPES, dtypes.UINT8), "step.output_dtype", limit, dtypes.name(asked.output_dtype)
    )
    is_fit = asked.output_dtype != dtypes.UINT8 or all(name in ("color", "alpha") for name in asked.outputs)
    require(is_fit, "step.output_dtype", "another type for outputs beside color and alpha", "DTYPE_UINT8")


def converted(tensor: torch.Tensor, dtype: int) -> torch.Tensor:
    """Convert an image to the requested dtype."""
    if dtype == dtypes.UINT8:
        return (tensor.clamp(0.0, 1.0) * 255.0).round_().to(torch.uint8)
    return tensor.to(TORCH_DTYPES[dtype])


def framed(reply: training_pb2.TrainReply, request: Request) -> Frame[training_pb2.TrainReply]:
    """Return a reply without a payload."""
    reply.timings.CopyFrom(request.part.times.message())
    return Frame(reply)


def _image_frames(views: Sequence[int], arrays: Mapping[str, Array], request: Request) -> Replies:
    """Yield the reply with a step's images."""
    reply, payload = training_pb2.TrainReply(), request.part.lane.writer()
    reply.images.number = request.message.step.number
    reply.images.views.extend(views)
    reply.images.outputs.extend(named_tensors(arrays, payload))
    yield from frames_of(reply, payload)


def done_message(number: int, result: Done) -> training_pb2.StepDone:
    """Return the message that describes a finished step."""
    message = training_pb2.StepDone(
        number=number,
        views=result.views,
        count=result.count,
        visible=result.visible,
        statistics=[
            training_pb2.Statistic(name=name, norm=sqrt(s.squares), largest=s.largest, not_finite=s.not_finite)
            for name, s in result.statistics.items()
        ],
        density=result.density,
        discarded=result.discarded,
    )
    if result.loss is not None:
        message.loss = result.loss
        message.terms.update(result.terms)
    return message
