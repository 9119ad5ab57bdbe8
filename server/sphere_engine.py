"""Runs the sphere kernels for a call, camera by camera, on the device's thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from lumigrad.kernels import spheres
from lumigrad.protos.dtypes import Array
from lumigrad.server.call import Call
from lumigrad.server.gradients import GradientSum
from lumigrad.server.limits import arguments_of
from lumigrad.server.scenes import Tensors, bytes_of
from lumigrad.server.sphere_cloud import PER_SPHERE
from lumigrad.server.sphere_plan import SpherePlan
from lumigrad.server.transfer import Transfer
from lumigrad.v1 import render_pb2

CAMERA_GRADIENTS = ("cameras", "camera_rotation", "camera_translation", "camera_intrinsics")


@dataclass(frozen=True)
class SphereState:
    """What Backward needs of a forward: one state per camera. Also keeps the scene as it was."""

    plan: SpherePlan
    tensors: Tensors
    states: Sequence[spheres.State]

    @property
    def bytes(self) -> int:
        """What it holds on the device; a scene shared with others counts too, as it may outlive them."""
        return sum(state.bytes for state in self.states) + bytes_of(self.tensors)


@dataclass(frozen=True)
class Rendered:
    """The outputs on the host, each in one part per camera, and the state if it was to be retained."""

    outputs: Mapping[str, Sequence[Array]]
    state: SphereState | None


class SphereEngine:
    """The sphere kernels on one device."""

    def __init__(self, transfer: Transfer) -> None:
        self._transfer = transfer

    def render(self, plan: SpherePlan, tensors: Tensors, call: Call, *, retain: bool) -> Rendered:
        """Render every camera."""
        forwards = list(self._forwards(plan, tensors, call, retain=retain))
        self._transfer.finish()
        for forward in forwards:
            call.times.add_kernel(forward.stages())
        with call.times.stage("download"):
            arrays = iter(
                self._transfer.download([forward.outputs[name] for name in plan.outputs for forward in forwards])
            )
            outputs = {name: [next(arrays) for _ in forwards] for name in plan.outputs}
        states = [forward.state for forward in forwards if forward.state is not None]
        return Rendered(outputs, SphereState(plan, tensors, states) if retain else None)

    def backward(
        self,
        state: SphereState,
        output_gradients: Tensors,
        request: render_pb2.BackwardSpec,
        call: Call,
    ) -> Mapping[str, Array]:
        """Differentiate what `render` retained."""
        return self._differentiate(iter(state.states), output_gradients, request, call)

    def render_backward(
        self,
        plan: SpherePlan,
        tensors: Tensors,
        output_gradients: Tensors,
        request: render_pb2.BackwardSpec,
        call: Call,
    ) -> Mapping[str, Array]:
        """Render again and differentiate, holding the state of one camera at a time."""
        return self._differentiate(self._recomputed(plan, tensors, call), output_gradients, request, call)

    def _forwards(self, plan: SpherePlan, tensors: Tensors, call: Call, *, retain: bool) -> Iterator[spheres.Forward]:
        background = self._background(plan)
        for camera in plan.cameras:
            call.check()
            with arguments_of("spec"):
                yield spheres.forward(
                    tensors["positions"],
                    tensors["colors"],
                    tensors["radii"],
                    [camera],
                    plan.settings,
                    opacities=tensors.get("opacities"),
                    background=background,
                    outputs=plan.outputs,
                    retain=retain,
                )

    def _recomputed(self, plan: SpherePlan, tensors: Tensors, call: Call) -> Iterator[spheres.State]:
        for forward in self._forwards(plan, tensors, call, retain=True):
            self._transfer.finish()
            call.times.add_kernel(forward.stages())
            assert forward.state is not None
            yield forward.state

    def _differentiate(
        self,
        states: Iterator[spheres.State],
        output_gradients: Tensors,
        request: render_pb2.BackwardSpec,
        call: Call,
    ) -> Mapping[str, Array]:
        wanted = tuple(dict.fromkeys(request.wanted)) or ("positions", "colors", "radii")
        total = GradientSum(PER_SPHERE, CAMERA_GRADIENTS)
        for index, state in enumerate(states):
            call.check()
            own = {name: gradient[index : index + 1] for name, gradient in output_gradients.items()}
            with arguments_of("spec"):
                step = spheres.backward(state, own, wanted)
            self._transfer.finish()
            call.times.add_kernel(step.stages())
            total.add(step.gradients, step.touched)
        with call.times.stage("download"):
            gradients = total.formatted(request.format)
            return dict(zip(gradients, self._transfer.download(list(gradients.values())), strict=True))

    def _background(self, plan: SpherePlan) -> torch.Tensor | None:
        if not plan.background:
            return None
        return torch.tensor(plan.background, dtype=torch.float32).to(self._transfer.device)
