"""The autograd node of a remote rendering of spheres, on CPU tensors. Devices and batches are its callers' matter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from lumigrad.client.camera import Camera
from lumigrad.client.client import Client
from lumigrad.client.frame import Frame
from lumigrad.client.request import RenderRequest
from lumigrad.client.settings import SphereSettings
from lumigrad.client.spheres import Spheres
from lumigrad.client.torch.graphs import first_order, is_last_pass, outside_graphs

# The differentiable inputs of the node, named as in the contract and in the order in which it takes them.
INPUTS = ("positions", "colors", "radii", "opacities", "cameras", "background", "gamma")


@dataclass(frozen=True)
class SphereCall:
    """All of a rendering that is not a tensor.

    Attributes:
        client: the way to the worker.
        settings: how to blend; `background` and `gamma` tensors replace what it says.
        camera: makes the camera from the tensor of its parameters, or ignores it.
        outputs: what to return, in this order.
        differentiable: those of them through which gradients flow.
        retain: a backward will probably come.
        before_backward: told which gradients are about to be computed.
    """

    client: Client
    settings: SphereSettings
    camera: Callable[[torch.Tensor | None], Camera]
    outputs: tuple[str, ...]
    differentiable: frozenset[str]
    retain: bool
    before_backward: Callable[[Sequence[str]], None] = lambda _: None

    def render(self, inputs: dict[str, torch.Tensor | None]) -> Frame:
        """Renders one picture from CPU tensors."""
        arrays = {name: None if tensor is None else tensor.detach().numpy() for name, tensor in inputs.items()}
        settings = self.settings
        if arrays["background"] is not None:
            settings = replace(settings, background=tuple(arrays["background"].ravel().tolist()))
        if arrays["gamma"] is not None:
            settings = replace(settings, gamma=float(arrays["gamma"]))
        scene = Spheres(*(arrays[name] for name in ("positions", "colors", "radii", "opacities")))
        request = RenderRequest(scene, (self.camera(inputs["cameras"]),), True, settings, self.outputs)
        return self.client.render_request(request, retain=self.retain)


def render_remotely(call: SphereCall, inputs: Sequence[torch.Tensor | None]) -> dict[str, torch.Tensor]:
    """The outputs of `call` by name, part of the autograd graph.

    Args:
        call: what to render.
        inputs: CPU float32 tensors, one for each of `INPUTS`, None for those absent.
    """
    results = RemoteSpheres.apply(call, *inputs)  # type: ignore[no-untyped-call]
    return dict(zip(call.outputs, results, strict=True))


class RemoteSpheres(torch.autograd.Function):
    """Renders on the worker; backward asks the same worker for the gradients that are needed, and no others."""

    @staticmethod
    def forward(ctx: Any, call: SphereCall, *inputs: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        """Takes the tensors of `INPUTS`, None for those absent, and returns those of `call.outputs`."""
        frame = call.render(dict(zip(INPUTS, inputs, strict=True)))
        results = {name: torch.from_numpy(frame[name]) for name in call.outputs}
        ctx.call, ctx.frame = call, frame
        # Saved only so that autograd notices when one is changed in place before backward.
        ctx.save_for_backward(*(tensor for tensor in inputs if tensor is not None))
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(results[name] for name in call.outputs if name not in call.differentiable))
        return tuple(results.values())

    @staticmethod
    @outside_graphs
    @first_order
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """Gradients for the inputs that require one."""
        _ = ctx.saved_tensors
        upstream = {
            name: gradient
            for name, gradient in zip(ctx.call.outputs, gradients, strict=True)
            if gradient is not None and name in ctx.call.differentiable
        }
        wanted = [name for name, needed in zip(INPUTS, ctx.needs_input_grad[1:], strict=True) if needed]
        if not upstream or not wanted:
            return (None,) * (1 + len(INPUTS))
        ctx.call.before_backward(wanted)
        found = ctx.frame.backward(**upstream, wanted=wanted, release=is_last_pass())
        return None, *(torch.from_numpy(found[name]) if name in wanted else None for name in INPUTS)
