"""Publishes a training's parameters as the next version of its scene, or sends a copy to its client."""

from __future__ import annotations

import secrets
from functools import partial

import numpy as np
import torch

from lumigrad.kernels.steps import Steps
from lumigrad.protos.dtypes import Array
from lumigrad.protos.streams import frames_of
from lumigrad.server.core.call import Call, NoLane
from lumigrad.server.core.errors import SceneNotFoundError, VersionMismatchError
from lumigrad.server.device.memory import Cost
from lumigrad.server.device.transfer import Delivery, Download
from lumigrad.server.scenes.clouds import CloudContent, KeptTensors
from lumigrad.server.scenes.lookup import stored_scene, with_stored
from lumigrad.server.storage.tenants import Runtime
from lumigrad.server.storage.trainings import Training
from lumigrad.server.training.requests import Replies, Request
from lumigrad.server.training.state import TrainingState
from lumigrad.v1 import scene_pb2, training_pb2

# Makes update ids unique: after a return to a snapshot, a training may publish other parameters at the same step.
_RANDOM_BYTES = 4
# The digits of each of the two parts of a scene's id.
_HALF = 16


def publish(training: Training[TrainingState], runtime: Runtime, call: Call) -> scene_pb2.SceneInfo:
    """Publish the parameters as the next version of the scene.

    Raises VersionMismatchError if another caller has updated the scene.
    """
    state = training.state
    old = stored_scene(runtime, call, state.scene_id)
    if not isinstance(old.content, CloudContent):
        raise SceneNotFoundError(state.scene_id)
    if old.version != state.version and not _is_by(training.training_id, old.update_id):
        raise VersionMismatchError(state.scene_id, state.version, old.version)
    rules = old.content.rules

    def copies() -> Steps[Delivery[KeptTensors]]:
        values, blocks = state.parameters.values, state.blocks
        if blocks is None:
            copied = {name: tensor.clone() for name, tensor in values.items()}
            rules.check_values(copied, "start.scene")
        else:
            copied = {name: torch.empty_like(tensor, device=blocks.device) for name, tensor in values.items()}
            for pages in blocks.parts():
                yield
                call.check()
                rules.check_values(blocks.copy_to(copied, pages, state.plan.optimizer, state.step), "start.scene")
        runtime.transfer.finish()
        return Delivery(KeptTensors.of(copied), Download(()))

    cost = Cost(bytes=sum(tensor.nbytes for tensor in state.parameters.values.values()), is_repeatable=True)
    runtime.memory.check(cost)
    kept = runtime.executor.deliver_steps(copies, call, cost)
    update_id = f"{training.training_id}:{state.step}:{secrets.token_hex(_RANDOM_BYTES)}"
    own_id = _own_id(training.training_id, state) if state.plan.message.keeps_shared_scene else ""
    content = CloudContent.of(rules, kept)
    replace = partial(runtime.scenes.replace, own_id=own_id, is_lasting=True)
    info = with_stored(runtime, call, lambda: replace(state.scene_id, old.version, content, update_id, call))
    state.scene_id, state.version = info.scene_id, info.version
    return info


def adopt(training_id: str, state: TrainingState, runtime: Runtime) -> None:
    """Take over the scene and the version that a restored training has published after its snapshot."""
    for scene_id in (_own_id(training_id, state), state.scene_id):
        info = runtime.scenes.info(scene_id)
        if info is not None and _is_by(training_id, info.update_id):
            state.scene_id, state.version = info.scene_id, info.version
            return


def scene_frames(state: TrainingState, runtime: Runtime, request: Request) -> Replies:
    """Yield the reply with the parameters; the stored scene stays as it is."""
    values = state.parameters.values
    nbytes = sum(tensor.nbytes for tensor in values.values())
    runtime.payload_memory.reserve(nbytes, request.part)
    cost = Cost(bytes=nbytes if runtime.transfer.is_cpu else 0, payload_bytes=nbytes, is_repeatable=True)
    runtime.memory.check(cost)

    lane = request.part.lane
    with request.part.times.stage("download"):
        if state.blocks is None:
            # Copied, because the next step would change tensors on the host.
            copy = partial(runtime.transfer.copied, list(values.values()), lane)
            copies = runtime.executor.run(copy, request.part, cost)
        else:
            copies = [_allocated(value, lane) for value in values.values()]
            into = dict(zip(values, map(torch.from_numpy, copies), strict=True))
            for pages in state.blocks.parts():
                copy_part = partial(state.blocks.copy_to, into, pages, state.plan.optimizer, state.step)
                runtime.executor.run(copy_part, request.part)
    reply, payload = training_pb2.TrainReply(), lane.writer()
    reply.scene.step = state.step
    cloud = getattr(reply.scene.scene, state.plan.kind)
    cloud.SetInParent()
    for name, array in zip(values, copies, strict=True):
        getattr(cloud, name).CopyFrom(payload.add(array))
    reply.timings.CopyFrom(request.part.times.message())
    yield from frames_of(reply, payload)


def _allocated(like: torch.Tensor, lane: NoLane) -> Array:
    """Allocate an array on the host, in the shared memory of a lane if that has room."""
    shape = tuple(like.shape)
    shared = lane.allocate(shape, np.dtype(np.float32))
    return np.empty(shape, np.float32) if shared is None else shared


def _own_id(training_id: str, state: TrainingState) -> str:
    """Return the id of the scene that a training publishes if it must leave a shared scene unchanged."""
    return state.scene_id[:_HALF] + training_id[-_HALF:]


def _is_by(training_id: str, update_id: str) -> bool:
    """Return whether a training has made a version of a scene, judging by the id of its update."""
    return update_id.startswith(f"{training_id}:")
