"""Publishes a training's parameters as the next version of its scene."""

from __future__ import annotations

from lumigrad.server.core.call import Call
from lumigrad.server.core.errors import SceneNotFoundError
from lumigrad.server.device.memory import Cost
from lumigrad.server.scenes.clouds import CloudContent, KeptTensors
from lumigrad.server.scenes.lookup import stored_scene
from lumigrad.server.storage.runtime import Runtime
from lumigrad.server.training.state import TrainingState
from lumigrad.v1 import scene_pb2


def publish(state: TrainingState, runtime: Runtime, call: Call) -> scene_pb2.SceneInfo:
    """Copy the values into a new version of the scene; VersionMismatchError if another caller has updated it."""
    old = stored_scene(runtime, call, state.scene_id, state.version)
    if not isinstance(old.content, CloudContent):
        raise SceneNotFoundError(state.scene_id)
    rules = old.content.rules

    def copy() -> KeptTensors:
        copies = {name: tensor.clone() for name, tensor in state.parameters.values.items()}
        rules.check_values(copies, "start.scene")
        runtime.transfer.finish()
        return KeptTensors.of(copies)

    cost = Cost(bytes=sum(tensor.nbytes for tensor in state.parameters.values.values()), is_repeatable=True)
    runtime.memory.check(cost)
    kept = runtime.executor.run(copy, call, cost)
    info = runtime.scenes.replace(state.scene_id, state.version, CloudContent.of(rules, kept))
    state.version = info.version
    return info
