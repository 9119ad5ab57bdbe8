"""TrainingService: scenes that are trained where they are."""

from __future__ import annotations

import copy
from collections.abc import Iterator

from lumigrad.protos.wire import Frame
from lumigrad.server.call import Call
from lumigrad.server.errors import TrainingLostError
from lumigrad.server.limits import require
from lumigrad.server.recall import stored_scene
from lumigrad.server.runtime import Runtime
from lumigrad.server.tenants import Tenants
from lumigrad.server.training import snapshots
from lumigrad.server.training.density_state import DensityState
from lumigrad.server.training.parameters import Parameters
from lumigrad.server.training.replies import framed
from lumigrad.server.training.requests import Request, Requests
from lumigrad.server.training.session import MAX_IN_FLIGHT, Session
from lumigrad.server.training.spec import POSES, TrainingPlan
from lumigrad.server.training.state import TrainingState
from lumigrad.server.training.store import Training
from lumigrad.server.training.views import Views
from lumigrad.v1 import training_pb2

Frames = Iterator[Frame[training_pb2.TrainRequest]]


class TrainingService:
    """The methods of `lumigrad.v1.TrainingService`."""

    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants

    def Train(self, frames: Frames, call: Call) -> Iterator[Frame[training_pb2.TrainReply]]:
        """Begin a training, or take one up, and do what is asked of it."""
        runtime = self._tenants.of(call)
        call.operation = "train"
        received = Requests(frames, runtime, call)
        requests = iter(received)
        first = next(requests, None)
        require(first is not None and first.kind == "start", "kind", "start first", first and first.kind)
        assert first is not None
        training = self._opened(first, runtime, call)
        with runtime.trainings.held(training, call):
            call.engine = training.state.plan.kind
            yield framed(_started(training, first.message.start.undelivered), first)
            session = Session(training, runtime, received.expect)
            for request in requests:
                yield from session.answer(request)
                call.renew()

    def _opened(self, first: Request, runtime: Runtime, call: Call) -> Training:
        start = first.message.start
        require(not start.HasField("peers"), "start.peers", "none: a training is on one worker", "some")
        source = start.WhichOneof("source")
        require(source is not None, "start.source", "scene or training_id", "neither")
        if source == "scene":
            return runtime.trainings.add(_begun(start, runtime, first), call)
        training = runtime.trainings.find(start.training_id, start.lease)
        at_step = start.at_step if start.HasField("at_step") else None
        if training is not None and at_step in (None, training.state.step):
            return training
        state = snapshots.read(start.training_id, start.lease, at_step, runtime, first.part)
        if state is None:
            raise TrainingLostError(start.training_id)
        if training is not None:
            runtime.trainings.forget(training)
        return runtime.trainings.add(state, call, start.training_id, start.lease)


def _begun(start: training_pb2.TrainingStart, runtime: Runtime, first: Request) -> TrainingState:
    require(start.scene.version > 0, "start.scene.version", "the version that the training builds on", 0)
    runtime.trainings.check_free(start.scene.scene_id)
    scene = stored_scene(runtime, first.part, start.scene.scene_id, start.scene.version)
    shapes = scene.content.outline.shapes
    plan = TrainingPlan.of(copy.deepcopy(start.spec), scene.kind, shapes, runtime.limits, "start.spec")
    views = Views.of(start.views, runtime, first.part, "start.views")
    if POSES in plan.optimizer.rates:
        views.check_poses("start.views")
    tensors = scene.content.tensors

    def make() -> TrainingState:
        parameters = Parameters.of_scene(tensors, plan.optimizer)
        density = None if plan.density is None else DensityState(plan.density, parameters)
        return TrainingState(start.scene.scene_id, plan, views, parameters, density)

    state = runtime.executor.run(make, first.part)
    state.version = scene.version
    return state


def _started(training: Training, undelivered: int) -> training_pb2.TrainReply:
    reply, state = training_pb2.TrainReply(), training.state
    started = reply.started
    started.training_id, started.lease = training.training_id, training.lease
    started.step, started.count, started.max_in_flight = state.step, state.parameters.count, MAX_IN_FLIGHT
    started.has_loss = state.plan.loss is not None and state.views.has_targets
    started.done.extend(done for done in state.told if done.number >= undelivered)
    started.scene.scene_id, started.scene.version = state.scene_id, state.version
    if state.snapshot_step >= 0:
        started.snapshot_step = state.snapshot_step
    return reply
