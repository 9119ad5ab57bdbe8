"""The autograd nodes of a remote rendering of Gaussians: the pictures, and the projected centres on their own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lumigrad.client.base.arrays import Array
from lumigrad.client.rendering.frame import Frame
from lumigrad.client.torch.gaussian_call import INPUTS, GaussianCall, Inputs
from lumigrad.client.torch.graphs import first_order, is_last_pass, outside_graphs

# The outputs through which gradients flow, beside the projected centres.
IMAGES = ("color", "transmittance", "depth", "inverse_depth")
# The inputs that the projected centres depend on.
PROJECTED = ("means", "quats", "scales", "covariances", "transforms", "view", "projection", "position")


@dataclass(frozen=True)
class Layout:
    """How values per camera and Gaussian lie in a tensor.

    Attributes:
        shape: the sizes [.., C, N] of a dense tensor.
        visible: positions among all cameras and Gaussians, ascending, of those in a packed tensor; None: dense.
        device: where the tensors are.
    """

    shape: tuple[int, ...]
    visible: torch.Tensor | None
    device: torch.device

    def arrange(self, array: Array) -> torch.Tensor:
        """[.., C, N, ...] or packed [M, ...] from what the worker sent, [V, N, ...]."""
        values = torch.from_numpy(array)
        if self.visible is not None:
            return values.reshape(-1, *values.shape[2:])[self.visible].to(self.device)
        return values.reshape(*self.shape, *values.shape[2:]).to(self.device)

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """The other way round, on the CPU; 0 for what is not visible."""
        values = values.detach().to("cpu", torch.float32)
        if self.visible is not None:
            dense = values.new_zeros(math.prod(self.shape), *values.shape[1:])
            dense[self.visible] = values
            values = dense
        trailing = values.shape[1 if self.visible is not None else len(self.shape) :]
        return values.reshape(-1, self.shape[-1], *trailing)


@dataclass(frozen=True)
class Rendering:
    """A finished rendering, as its nodes share it.

    Attributes:
        call: what was asked.
        frame: what came back; the way to its gradients.
        layout: of the projected centres.
        absgrad: after backward the projected centres get the sums of absolute gradients as an attribute `absgrad`.
        coordinate: inputs whose gradients are COO tensors over the visible Gaussians.
    """

    call: GaussianCall
    frame: Frame
    layout: Layout
    absgrad: bool = False
    coordinate: tuple[str, ...] = ()


def draw(
    rendering: Rendering, centres: torch.Tensor | None, echo: torch.Tensor | None, inputs: Inputs
) -> dict[str, torch.Tensor]:
    """The images of a rendering by name, [V, H, W, ...] on the CPU, part of the autograd graph.

    Args:
        rendering: finished.
        centres: gets the gradient of the projected centres, in the layout of the rendering; None: nobody wants it.
        echo: of `project`, if the centres come from there.
        inputs: the tensors that were rendered.
    """
    tensors = [inputs[name] for name in INPUTS]
    results = DrawnGaussians.apply(rendering, centres, echo, *tensors)  # type: ignore[no-untyped-call]
    return dict(zip((name for name in IMAGES if name in rendering.frame), results, strict=True))


def project(rendering: Rendering, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """The projected centres, pixels, as a part of the autograd graph of their own; and an echo, for `draw`.

    A loss may use the centres directly, hooks may change their gradient, and `retain_grad` shows it: what `draw` sends
    into them is sent into the echo too, so that their own node can tell what was added.
    """
    tensors = [inputs[name] for name in PROJECTED]
    centres, echo = ProjectedGaussians.apply(rendering, *tensors)  # type: ignore[no-untyped-call]
    return centres, echo


class DrawnGaussians(torch.autograd.Function):
    """The images. Its backward gives the inputs all that the images send back, also through the projected centres."""

    @staticmethod
    def forward(
        ctx: Any,
        rendering: Rendering,
        centres: torch.Tensor | None,
        echo: torch.Tensor | None,
        *inputs: torch.Tensor | None,
    ) -> tuple[torch.Tensor, ...]:
        """Takes the tensors of `INPUTS`, None for those absent, and returns the images that were rendered."""
        ctx.rendering = rendering
        _remember(ctx, inputs, centres)
        return tuple(torch.from_numpy(rendering.frame[name]) for name in IMAGES if name in rendering.frame)

    @staticmethod
    @outside_graphs
    @first_order
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """Gradients for the inputs that require one, and for the centres."""
        rendering: Rendering = ctx.rendering
        saved = ctx.saved_tensors
        centres = saved[-1] if ctx.with_centres else None
        images = [name for name in IMAGES if name in rendering.frame]
        upstream = {name: value for name, value in zip(images, gradients, strict=True) if value is not None}
        _, centres_needed, echo_needed, *needed = ctx.needs_input_grad
        wanted = [name for name, need in zip(INPUTS, needed, strict=True) if need]
        absolute = rendering.absgrad and centres is not None
        of_centres = [name for name, need in (("means2d", centres_needed), ("means2d_abs", absolute)) if need]
        if not upstream or not (wanted or of_centres):
            return (None,) * (3 + len(INPUTS))
        # With an echo the node of the centres comes next, and may have to ask for more.
        release = is_last_pass() and not echo_needed
        found = rendering.call.gradients(rendering.frame, upstream, wanted + of_centres, release=release)
        if absolute and centres is not None:
            centres.absgrad = rendering.layout.arrange(found["means2d_abs"].numpy())
        to_centres = rendering.layout.arrange(found["means2d"].numpy()) if centres_needed else None
        return None, to_centres, to_centres if echo_needed else None, *_shaped(ctx, rendering, INPUTS, wanted, found)


class ProjectedGaussians(torch.autograd.Function):
    """The projected centres. Its backward asks the worker only if more reached them than the images sent."""

    @staticmethod
    def forward(ctx: Any, rendering: Rendering, *inputs: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes the tensors of `PROJECTED`, None for those absent."""
        ctx.rendering = rendering
        _remember(ctx, inputs, None)
        centres = rendering.layout.arrange(rendering.frame.means2d)
        # No memory: one number, repeated.
        return centres, centres.new_zeros(()).expand_as(centres)

    @staticmethod
    @outside_graphs
    @first_order
    def backward(
        ctx: Any, gradient: torch.Tensor | None, echoed: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        """Gradients of what was added to the gradient that `draw` sent, and gave to the inputs already."""
        rendering: Rendering = ctx.rendering
        _ = ctx.saved_tensors
        nothing: tuple[None, ...] = (None,) * (1 + len(PROJECTED))
        wanted = [name for name, need in zip(PROJECTED, ctx.needs_input_grad[1:], strict=True) if need]
        added = gradient
        if echoed is not None:
            added = -echoed if gradient is None else gradient - echoed
        if added is None or not wanted or not added.any():
            if is_last_pass():
                rendering.frame.release()
            return nothing
        upstream = {"means2d": rendering.layout.spread(added)}
        found = rendering.call.gradients(rendering.frame, upstream, wanted, release=is_last_pass())
        return None, *_shaped(ctx, rendering, PROJECTED, wanted, found)


def _remember(ctx: Any, inputs: Sequence[torch.Tensor | None], centres: torch.Tensor | None) -> None:
    ctx.set_materialize_grads(False)
    ctx.shapes = [None if tensor is None else tensor.shape for tensor in inputs]
    ctx.with_centres = centres is not None
    # The inputs only so that autograd notices when one is changed in place before backward.
    kept = [tensor for tensor in inputs if tensor is not None]
    ctx.save_for_backward(*kept, *([] if centres is None else [centres]))


def _shaped(
    ctx: Any, rendering: Rendering, names: Sequence[str], wanted: Sequence[str], found: dict[str, torch.Tensor]
) -> list[torch.Tensor | None]:
    """The gradients in the order and shapes of the inputs."""
    gradients: list[torch.Tensor | None] = []
    for name, shape in zip(names, ctx.shapes, strict=True):
        gradient = None
        if name in wanted:
            gradient = found[name].reshape(shape)
            if name in rendering.coordinate:
                gradient = _coordinates(gradient, rendering)
            elif name in ("view", "projection", "position"):
                gradient = gradient.double()
        gradients.append(gradient)
    return gradients


def _coordinates(gradient: torch.Tensor, rendering: Rendering) -> torch.Tensor:
    """A COO tensor [.., N, k] with an entry for each Gaussian that some camera of its scene sees."""
    radii = torch.from_numpy(rendering.frame.radii)
    leading = gradient.shape[:-1]
    scenes = math.prod(leading[:-1])
    seen = (radii > 0).all(dim=-1).reshape(scenes, -1, leading[-1]).any(dim=1).reshape(leading)
    indices = seen.nonzero().T
    return torch.sparse_coo_tensor(indices, gradient[seen], gradient.shape, is_coalesced=True, check_invariants=False)
