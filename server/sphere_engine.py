"""Runs the sphere kernels for a call on the device's thread, and stops between views when nobody waits any more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from lumigrad.kernels import spheres
from lumigrad.protos.dtypes import Array
from lumigrad.server.call import Call
from lumigrad.server.gradients import formatted
from lumigrad.server.limits import arguments_of
from lumigrad.server.scenes import Tensors
from lumigrad.server.sphere_plan import SpherePlan
from lumigrad.server.transfer import Transfer
from lumigrad.v1 import render_pb2

_DEFAULT_WANTED = ("positions", "colors", "radii")


@dataclass(frozen=True)
class SphereState:
    """A forward that waits for its backward, and what was asked for then."""

    plan: SpherePlan
    count: int
    channels: int
    state: spheres.State


@dataclass(frozen=True)
class Rendered:
    """The outputs on the host, and the state if it was to be retained."""

    outputs: Mapping[str, Array]
    state: SphereState | None


class SphereEngine:
    """The sphere kernels on one device."""

    def __init__(self, transfer: Transfer) -> None:
        self._transfer = transfer

    def render(self, plan: SpherePlan, tensors: Tensors, call: Call, *, retain: bool) -> Rendered:
        """Render every view."""
        forward = self._forward(plan, tensors, plan.outputs, call, retain=retain)
        with call.times.stage("download"):
            arrays = self._transfer.download([forward.outputs[name] for name in plan.outputs])
        outputs = dict(zip(plan.outputs, arrays, strict=True))
        if forward.state is None:
            return Rendered(outputs, None)
        count, channels = tensors["colors"].shape
        return Rendered(outputs, SphereState(plan, count, channels, forward.state))

    def backward(
        self, state: spheres.State, output_gradients: Tensors, request: render_pb2.BackwardSpec, call: Call
    ) -> Mapping[str, Array]:
        """Differentiate what was retained."""
        wanted = tuple(dict.fromkeys(request.wanted)) or _DEFAULT_WANTED
        with arguments_of("spec"):
            result = spheres.backward(state, output_gradients, wanted, before_view=call.check)
        self._transfer.finish()
        call.times.add_kernel(result.stages())
        with call.times.stage("download"):
            gradients = formatted(result.gradients, result.touched, request.format)
            return dict(zip(gradients, self._transfer.download(list(gradients.values())), strict=True))

    def render_backward(
        self,
        plan: SpherePlan,
        tensors: Tensors,
        output_gradients: Tensors,
        request: render_pb2.BackwardSpec,
        call: Call,
    ) -> Mapping[str, Array]:
        """Render again what the gradients are for, and differentiate."""
        forward = self._forward(plan, tensors, tuple(output_gradients), call, retain=True)
        assert forward.state is not None
        return self.backward(forward.state, output_gradients, request, call)

    def _forward(
        self, plan: SpherePlan, tensors: Tensors, outputs: tuple[str, ...], call: Call, *, retain: bool
    ) -> spheres.Forward:
        with arguments_of("spec"):
            forward = spheres.forward(
                tensors["positions"],
                tensors["colors"],
                tensors["radii"],
                plan.cameras,
                plan.settings,
                opacities=tensors.get("opacities"),
                background=self._background(plan),
                outputs=outputs,
                retain=retain,
                before_view=call.check,
            )
        self._transfer.finish()
        call.times.add_kernel(forward.stages())
        return forward

    def _background(self, plan: SpherePlan) -> torch.Tensor | None:
        if not plan.background:
            return None
        return torch.tensor(plan.background, dtype=torch.float32).to(self._transfer.device)
