"""TrainingService: trains stored scenes on the worker."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial

from lumigrad.protos.wire import Frame
from lumigrad.server.core import logs
from lumigrad.server.core.call import Call, NoLane
from lumigrad.server.core.errors import StoppingError, TrainingLostError
from lumigrad.server.core.limits import require
from lumigrad.server.device.memory import Cost
from lumigrad.server.engines.content import Tensors, shapes_of
from lumigrad.server.scenes.lookup import stored_scene
from lumigrad.server.storage.tenants import Runtime, Tenants
from lumigrad.server.storage.trainings import Training, TrainingReservation, counted
from lumigrad.server.training import snapshots
from lumigrad.server.training.blocks import KIND, Blocks, page_order
from lumigrad.server.training.cameras import check_cameras
from lumigrad.server.training.density import DensityState
from lumigrad.server.training.images import Planned
from lumigrad.server.training.parameters import Parameters
from lumigrad.server.training.publishing import adopt
from lumigrad.server.training.requests import Request, Requests
from lumigrad.server.training.session import MAX_IN_FLIGHT, MOST_STEPS, Session, framed
from lumigrad.server.training.spec import TrainingPlan
from lumigrad.server.training.state import TrainingState, footprint_of
from lumigrad.server.training.views import Views
from lumigrad.v1 import training_pb2

Frames = Iterator[Frame[training_pb2.TrainRequest]]

_MAX_START_ID = 64
# How often a stopping worker checks whether calls have released their trainings.
_LOOK_SECONDS = 0.05


class TrainingService:
    """The methods of `lumigrad.v1.TrainingService`."""

    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants
        self._is_suspended = False

    def Train(self, frames: Frames, call: Call) -> Iterator[Frame[training_pb2.TrainReply]]:
        """Begin or resume a training, and answer its requests."""
        for reply in self._replies(frames, call):
            if reply.message is not None:
                call.record.bytes_sent += reply.message.ByteSize()
                call.record.steps += reply.message.HasField("done") + len(reply.message.steps.done)
            yield reply

    def suspend(self, seconds: float) -> None:
        """End the calls of all trainings and write snapshots within `seconds`, because the worker is about to stop.

        Without a spool, trainings go on like other calls.
        """
        until = time.monotonic() + seconds
        self._is_suspended = True
        kept = [runtime for runtime in self._tenants.all() if runtime.tenant_spool is not None]
        for runtime in kept:
            runtime.trainings.suspend()
        _write_all(kept, until)
        lost = sum(len(runtime.trainings) for runtime in self._tenants.all() if runtime.tenant_spool is None)
        if lost:
            logs.event("trainings will be lost, since there is no spool (--spool)", logging.WARNING, trainings=lost)

    def _replies(self, frames: Frames, call: Call) -> Iterator[Frame[training_pb2.TrainReply]]:
        runtime = self._tenants.of(call)
        if self._is_suspended and runtime.tenant_spool is not None:
            raise StoppingError
        call.record.operation = "train"
        received = Requests(frames, runtime, call)
        first = next(iter(received), None)
        require(first is not None and first.kind == "start", "kind", "start first", first and first.kind)
        assert first is not None
        with _held(first, runtime, call) as training:
            call.record.engine = training.state.plan.kind
            yield framed(_started(training, first.message.start.undelivered), first)
            received.close(first)
            with closing(Session(training, runtime, received)) as session:
                yield from session.answer()


def _write_all(runtimes: Sequence[Runtime], until: float) -> None:
    """Write a snapshot of each training once no call holds it."""
    written: set[Training[TrainingState]] = set()
    # Callers have half of the time to take their replies.
    halfway = (time.monotonic() + until) / 2
    while True:
        is_held = any(runtime.trainings.is_held for runtime in runtimes)
        for runtime in runtimes:
            if time.monotonic() > halfway:
                runtime.trainings.cancel_unread()
            for training in runtime.trainings.released():
                if training not in written:
                    written.add(training)
                    snapshots.write_last(training, runtime, until)
        if not is_held or time.monotonic() > until:
            return
        time.sleep(_LOOK_SECONDS)


@contextmanager
def _held(first: Request, runtime: Runtime, call: Call) -> Iterator[Training[TrainingState]]:
    """Hold the training that a start message resumes or begins."""
    start, trainings = first.message.start, runtime.trainings
    source = start.WhichOneof("source")
    require(source is not None, "start.source", "scene or training_id", "neither")
    require(not start.HasField("peers"), "start.peers", "none: a training is on one worker", "some")
    length = len(start.start_id)
    require(length <= _MAX_START_ID, "start.start_id", f"at most {_MAX_START_ID} characters", length)
    if source == "scene":
        with trainings.begin(start.scene.scene_id, start.start_id, call) as training:
            if not training.is_made:
                trainings.keep(training, _begun(start, runtime, first))
                if start.spec.snapshot_every:
                    # If the worker dies before the next snapshot, the training continues from its beginning.
                    snapshots.write_due(training, runtime, first.part)
            yield training
        return
    at_step = start.at_step if start.HasField("at_step") else None
    with trainings.take_up(start.training_id, start.lease, start.holder, call) as training:
        if not training.is_made or at_step not in (None, training.state.step):
            trainings.keep(training, _restored(start, at_step, training, runtime, first))
        elif start.holder == 0 and training.state.has_unwritten_steps:
            # The client did not make those steps, so it could not repeat them if the worker died.
            snapshots.write_due(training, runtime, first.part)
        yield training


def _restored(
    start: training_pb2.TrainingStart,
    at_step: int | None,
    training: Training[TrainingState],
    runtime: Runtime,
    first: Request,
) -> TrainingState:
    found = snapshots.read(training, start.holder, at_step, runtime, first.part)
    if found is None:
        raise TrainingLostError(start.training_id)
    state, holder = found
    training.holder_number = max(training.holder_number, holder + (start.holder == 0))
    adopt(start.training_id, state, runtime)
    if at_step is not None:
        # If the worker restarts before the next snapshot, the training must not continue from discarded steps.
        snapshots.forget_after(start.training_id, state.step, runtime)
    return state


def _begun(start: training_pb2.TrainingStart, runtime: Runtime, first: Request) -> TrainingState:
    require(start.scene.version > 0, "start.scene.version", "the version that the training builds on", 0)
    scene = stored_scene(runtime, first.part, start.scene.scene_id, start.scene.version)
    shapes = scene.content.outline.shapes
    plan = TrainingPlan.of(copy.deepcopy(start.spec), scene.kind, shapes, runtime.limits, "start.spec")
    views = Views.of(start.views, runtime, first.part, "start.views")
    check_cameras(views, plan, "start.views")
    if plan.loss is not None:
        views.check_loss(plan.loss.weights, "start.spec.loss")
        views.check_channels(shapes["sh" if "sh" in shapes else "colors"][-1], "start.views")
    tensors = scene.content.tensors
    count = scene.content.count
    with runtime.trainings.reserved(footprint_of(plan, shapes, views), count) as reservation:
        runtime.memory.check(Cost(bytes=reservation.bytes))
        blocks = _blocks(tensors, plan, reservation, runtime, first.part) if plan.pool_bytes else None

        def make() -> TrainingState:
            parameters = Parameters.of_scene(tensors, plan.optimizer) if blocks is None else blocks.parameters
            density = None if plan.density is None else DensityState(plan.density, parameters)
            return TrainingState(start.scene.scene_id, plan, views, parameters, density, reservation, blocks=blocks)

        with counted(reservation.bytes):
            state = runtime.executor.run(make, first.part)
        if blocks is not None:
            # Plan each view, so that one that does not fit is refused now and not in a later step.
            for number in range(len(views)):
                Planned.of(state, [number], ("alpha",), runtime.limits, f"start.views[{number}]")
    state.version = scene.version
    snapshots.warn_of_size(state, runtime)
    return state


def _blocks(
    tensors: Tensors, plan: TrainingPlan, reservation: TrainingReservation, runtime: Runtime, call: Call
) -> Blocks:
    """Copy a scene's parameters to the spool, in the order of pages."""
    shapes, transfer = shapes_of(tensors), runtime.transfer
    require(runtime.tenant_spool is not None, "start.spec.pool_bytes", "a worker with a spool (--spool)", "none")
    assert runtime.tenant_spool is not None
    memory = runtime.tenant_spool.memory(KIND, Blocks.bytes(shapes, plan.optimizer))
    reservation.hold(memory)
    fetched = runtime.executor.run(lambda: transfer.copied([tensors["means"], tensors["scales"]], NoLane()), call)
    order = page_order(*fetched)
    blocks = Blocks.begun(order, shapes, plan.optimizer, memory, plan.pool_bytes, transfer.device)
    filled = 0
    while filled < len(order):
        filled = runtime.executor.run(partial(blocks.fill, filled, tensors, plan.optimizer), call)
    return blocks


def _started(training: Training[TrainingState], undelivered: int) -> training_pb2.TrainReply:
    reply, state = training_pb2.TrainReply(), training.state
    started = reply.started
    started.training_id, started.lease = training.training_id, training.lease
    started.holder, started.snapshot_every = training.holder_number, state.plan.message.snapshot_every
    started.step, started.count, started.max_in_flight = state.step, state.parameters.count, MAX_IN_FLIGHT
    started.has_lanes, started.most_steps = True, MOST_STEPS
    started.has_loss = state.plan.loss is not None and state.views.has_target_images
    started.done.extend(done for done in state.recent_replies if done.number >= undelivered)
    started.scene.scene_id, started.scene.version = state.scene_id, state.version
    if state.snapshot_step >= 0:
        started.snapshot_step = state.snapshot_step
    return reply
