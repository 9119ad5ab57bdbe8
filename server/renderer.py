"""Runs an engine's kernels for a call on the device's thread, and stops between views when nobody waits any more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lumigrad.protos.dtypes import Array
from lumigrad.server.call import Call
from lumigrad.server.engine import Engine, Forward, Plan, State
from lumigrad.server.gradients import formatted, wanted_of
from lumigrad.server.limits import arguments_of
from lumigrad.server.scenes import Tensors
from lumigrad.server.transfer import Transfer
from lumigrad.v1 import render_pb2


@dataclass(frozen=True)
class Task:
    """An engine, and what it was asked; `field` is the path of the spec in that request."""

    engine: Engine[Any]
    plan: Plan
    field: str


@dataclass(frozen=True)
class Retained:
    """A forward that waits for its backward."""

    task: Task
    state: State


@dataclass(frozen=True)
class Rendered:
    """The outputs on the host, and the state if it was to be retained."""

    outputs: Mapping[str, Array]
    retained: Retained | None


class Renderer:
    """The kernels of all engines on one device."""

    def __init__(self, transfer: Transfer) -> None:
        self._transfer = transfer

    def render(self, task: Task, tensors: Tensors, call: Call, *, retain: bool) -> Rendered:
        """Render every view."""
        names = task.plan.outputs
        forward = self._forward(task, tensors, names, call, retain=retain)
        with call.times.stage("download"):
            arrays = self._transfer.download([forward.outputs[name] for name in names])
        outputs = dict(zip(names, arrays, strict=True))
        return Rendered(outputs, None if forward.state is None else Retained(task, forward.state))

    def backward(
        self, retained: Retained, output_gradients: Tensors, request: render_pb2.BackwardSpec, call: Call
    ) -> Mapping[str, Array]:
        """Differentiate what was retained."""
        task = retained.task
        wanted = wanted_of(request, task.plan)
        with arguments_of("spec"):
            result = task.engine.backward(retained.state, output_gradients, wanted, call.check)
        self._transfer.finish()
        call.times.add_kernel(result.stages())
        with call.times.stage("download"):
            gradients = formatted(result, task.plan.row_gradients, request.format)
            return dict(zip(gradients, self._transfer.download(list(gradients.values())), strict=True))

    def render_backward(
        self,
        task: Task,
        tensors: Tensors,
        output_gradients: Tensors,
        request: render_pb2.BackwardSpec,
        call: Call,
    ) -> Mapping[str, Array]:
        """Render again what the gradients are for, and differentiate."""
        forward = self._forward(task, tensors, tuple(output_gradients), call, retain=True)
        assert forward.state is not None
        return self.backward(Retained(task, forward.state), output_gradients, request, call)

    def _forward(self, task: Task, tensors: Tensors, outputs: Sequence[str], call: Call, *, retain: bool) -> Forward:
        with arguments_of(task.field):
            forward = task.engine.forward(task.plan, tensors, outputs, retain=retain, before_view=call.check)
        self._transfer.finish()
        call.times.add_kernel(forward.stages())
        return forward
