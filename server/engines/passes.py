"""Runs an engine's kernels for a call on the device's thread, and stops between parts when nobody waits any more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lumigrad.protos.dtypes import Array
from lumigrad.server.core.call import Call
from lumigrad.server.core.limits import arguments_of
from lumigrad.server.device.memory import Cost
from lumigrad.server.device.transfer import Transfer
from lumigrad.server.engines.base import Engine, Forward, Plan, State
from lumigrad.server.engines.content import Tensors
from lumigrad.server.engines.gradients import Wanted, formatted, nonfinite
from lumigrad.server.engines.images import ImageFormats
from lumigrad.v1 import scene_pb2


@dataclass(frozen=True)
class Task:
    """An engine, and what it was asked.

    Attributes:
        engine: It.
        plan: What it was asked.
        field: The path of the spec in the request.
        scene: The stored scene that this is about, if it is one.
    """

    engine: Engine[Any, Any]
    plan: Plan
    field: str
    scene: scene_pb2.SceneRef | None

    def cost(self, operation: str, nbytes: int, payload_bytes: int) -> Cost:
        """Of some work on it; how long is unknown of a scene that comes with the call, and may be another each time."""
        kind = None
        if self.scene is not None and self.plan.kind is not None:
            kind = operation, self.engine.name, self.scene.scene_id, self.plan.kind
        return Cost(kind, self.plan.views, nbytes, payload_bytes, is_repeatable=True)


@dataclass(frozen=True)
class Retained:
    """A forward that waits for its backward."""

    task: Task
    state: State


@dataclass(frozen=True)
class Computed:
    """The outputs on the host, and the state if it was to be retained."""

    outputs: Mapping[str, Array]
    retained: Retained | None


class Passes:
    """Forward and backward passes of all engines on one device."""

    def __init__(self, transfer: Transfer) -> None:
        self._transfer = transfer

    def forward(self, task: Task, inputs: Any, call: Call, formats: ImageFormats, *, retain: bool) -> Computed:
        """Compute the outputs of the plan."""
        names = task.plan.outputs
        # What is retained must not lie where the caller can change it.
        into = {} if retain else self._rooms(task.plan, formats, call)
        forward = self._forward(task, inputs, names, call, retain=retain, into=into)
        with call.times.stage("download"):
            arrays = self._transfer.download(formats.converted({name: forward.outputs[name] for name in names}))
        outputs = dict(zip(names, arrays, strict=True))
        return Computed(outputs, None if forward.state is None else Retained(task, forward.state))

    def backward(
        self, retained: Retained, output_gradients: Tensors, wanted: Wanted, call: Call
    ) -> Mapping[str, Array]:
        """Differentiate what was retained."""
        task = retained.task
        with arguments_of("spec"):
            result = task.engine.backward(retained.state, output_gradients, wanted.names, call.check)
        self._transfer.finish()
        call.times.add_kernel(result.stages())
        with call.times.stage("download"):
            gradients = formatted(result, task.plan.row_gradients, wanted.format)
            call.nonfinite = nonfinite(gradients.values())
            return dict(zip(gradients, self._transfer.download(list(gradients.values())), strict=True))

    def forward_backward(
        self, task: Task, inputs: Any, output_gradients: Tensors, wanted: Wanted, call: Call
    ) -> Mapping[str, Array]:
        """Compute again what the gradients are for, and differentiate."""
        forward = self._forward(task, inputs, tuple(output_gradients), call, retain=True)
        assert forward.state is not None
        return self.backward(Retained(task, forward.state), output_gradients, wanted, call)

    def _rooms(self, plan: Plan, formats: ImageFormats, call: Call) -> Tensors:
        """Where on the CPU the kernels write images of the reply that travel as they are."""
        if not self._transfer.is_cpu:
            return {}
        rooms = {name: call.lane.room(plan.output_shapes[name]) for name in formats.unchanged(plan.outputs)}
        return {name: torch.from_numpy(room) for name, room in rooms.items() if room is not None}

    def _forward(
        self,
        task: Task,
        inputs: Any,
        outputs: Sequence[str],
        call: Call,
        *,
        retain: bool,
        into: Tensors | None = None,
    ) -> Forward:
        with arguments_of(task.field):
            forward = task.engine.forward(task.plan, inputs, outputs, retain=retain, before_view=call.check, into=into)
        self._transfer.finish()
        call.times.add_kernel(forward.stages())
        return forward
