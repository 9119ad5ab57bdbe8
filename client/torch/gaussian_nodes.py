"""The two autograd nodes of a Gaussian rendering: one for its images, one for the projected centres."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lumigrad.client.base.arrays import Array
from lumigrad.client.operators.gaussians import CAMERA_INPUTS, IMAGES, INPUTS, TRANSFORM_INPUTS, GaussianCall
from lumigrad.client.operators.sensors import LENS_INPUTS
from lumigrad.client.rendering.frame import Frame
from lumigrad.client.torch.remote import Tensors, attach

Gradients = dict[str, torch.Tensor]
# The inputs that the projected centres depend on.
PROJECTED = ("means", "quats", "scales", "covariances", *TRANSFORM_INPUTS, *CAMERA_INPUTS, *LENS_INPUTS)


@dataclass(frozen=True)
class Layout:
    """The layout of a tensor with values for each camera and Gaussian.

    Attributes:
        shape: the sizes [.., C, N] of a dense tensor.
        visible: for a packed tensor, the ascending indices of its entries in the flattened [.., C, N]; None: dense.
        device: the device of the tensors.
    """

    shape: tuple[int, ...]
    visible: torch.Tensor | None
    device: torch.device

    @property
    def rows(self) -> tuple[int, ...]:
        """The leading sizes of a tensor: [.., C, N], or [M] if it is packed."""
        return self.shape if self.visible is None else (len(self.visible),)

    def arrange(self, array: Array | torch.Tensor) -> torch.Tensor:
        """Converts the worker's [V, N, ...] to [.., C, N, ...], or to packed [M, ...]."""
        values = array if isinstance(array, torch.Tensor) else torch.from_numpy(array)
        if self.visible is not None:
            return values.flatten(0, 1)[self.visible].to(self.device)
        return values.reshape(*self.shape, *values.shape[2:]).to(self.device)

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """Inverts `arrange`, on the CPU; returns 0 for Gaussians that are not visible."""
        values = values.detach().to("cpu", torch.float32)
        if self.visible is not None:
            dense = values.new_zeros(math.prod(self.shape), *values.shape[1:])
            dense[self.visible] = values
            values = dense
        trailing = values.shape[1 if self.visible is not None else len(self.shape) :]
        return values.reshape(math.prod(self.shape[:-1]), self.shape[-1], *trailing)


@dataclass(frozen=True)
class Rendering:
    """A finished rendering, which its two nodes share.

    Attributes:
        call: the call that was made.
        frame: the call's result, which computes gradients.
        layout: the layout of the projected centres.
        absgrad: whether the projected centres have an attribute `absgrad`: zeros before backward, then the sums of
            absolute gradients.
    """

    call: GaussianCall
    frame: Frame
    layout: Layout
    absgrad: bool = False

    def gradients(
        self, upstream: Mapping[str, torch.Tensor], wanted: Sequence[str], release: bool
    ) -> dict[str, torch.Tensor]:
        """Computes the gradients of the call as tensors."""
        arrays = self.call.gradients(self.frame, upstream, wanted, release)
        return {name: torch.from_numpy(array) for name, array in arrays.items()}


@dataclass
class SparseRows:
    """Has tensors [.., N, k] get COO gradients, with an entry for each Gaussian that some camera of its scene sees.

    Attributes:
        seen: bool [.., N] which these are; to be set before the backward pass.
    """

    seen: torch.Tensor | None = None

    def of(self, value: Any) -> Any:
        """Returns a tensor of the same values whose gradient reaches `value` as a COO tensor; others unchanged."""
        # Conversions of type, device or shape have no sparse gradients, so that this comes before all of them.
        return _SparseGradient.apply(self, value) if isinstance(value, torch.Tensor) else value  # type: ignore[no-untyped-call]


class _SparseGradient(torch.autograd.Function):
    """Returns a tensor unchanged, and its gradient as a COO tensor."""

    @staticmethod
    def forward(ctx: Any, rows: SparseRows, tensor: torch.Tensor) -> torch.Tensor:
        ctx.rows = rows
        ctx.set_materialize_grads(False)
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> tuple[None, torch.Tensor | None]:
        if gradient is None:
            return None, None
        seen = ctx.rows.seen.to(gradient.device)
        values, places = gradient[seen], seen.nonzero().T
        return None, torch.sparse_coo_tensor(places, values, gradient.shape, is_coalesced=True, check_invariants=False)


def draw(
    rendering: Rendering,
    centres: torch.Tensor | None,
    echo: torch.Tensor | None,
    inputs: Tensors,
    is_read: Callable[[], bool] = lambda: True,
) -> dict[str, torch.Tensor]:
    """Returns the images of a rendering by name, [V, H, W, ...] on the CPU, as part of the autograd graph.

    The backward pass returns the whole gradient of the inputs, including the part through the projected centres.

    Args:
        rendering: the finished rendering.
        centres: receives the gradient of the projected centres, in the layout of the rendering; None: not needed.
        echo: the second result of `project`, if the centres come from there.
        inputs: the tensors that were rendered.
        is_read: called in backward; returns whether anybody has received the centres. If not, their gradient is not
            transferred, unless `absgrad` needs it.
    """
    layout = rendering.layout
    absolute = centres if rendering.absgrad else None
    if absolute is not None:
        # Callers may read the attribute before backward; an expanded scalar takes no memory.
        absolute.absgrad = absolute.new_zeros(()).expand_as(absolute)  # type: ignore[attr-defined]

    def differentiate(upstream: dict[str, torch.Tensor], wanted: tuple[str, ...], release: bool) -> Gradients:
        names = [name for name in wanted if name != "echo" and (name != "means2d" or is_read())]
        names += [] if absolute is None else ["means2d_abs"]
        # If there is an echo, the centres' node runs next and may need further gradients from the forward state.
        found = rendering.gradients(upstream, names, release and "echo" not in wanted)
        if absolute is not None:
            absolute.absgrad = layout.arrange(found["means2d_abs"])  # type: ignore[attr-defined]
        if "means2d" in found:
            found["means2d"] = layout.arrange(found["means2d"])
            # Hooks may change the gradient of the centres in place.
            found["echo"] = found["means2d"].clone()
        return found

    images = {name: torch.from_numpy(rendering.frame[name]) for name in IMAGES if name in rendering.frame}
    every = {**{name: inputs[name] for name in INPUTS}, "means2d": centres, "echo": echo}
    return attach(images, every, differentiate)


def project(rendering: Rendering, centres: torch.Tensor, inputs: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the projected centres, pixels, as a separate node of the autograd graph, and an echo of them for `draw`.

    A loss may use the centres directly, hooks may change their gradient, and `retain_grad` exposes it. `draw` returns
    the same gradient for the centres and for the echo, so the difference of their gradients is what other users of the
    centres have added. The backward pass of the centres propagates only this difference, on the worker; if it is 0, no
    call is made.

        inputs ---> centres, echo ---> draw ---> images ---> loss
                       |                                      ^
                       +--------------------------------------+

    Args:
        rendering: the finished rendering.
        centres: their values, in the layout of the rendering; they may be filled in later.
        inputs: the tensors that were rendered.
    """

    def differentiate(upstream: dict[str, torch.Tensor], wanted: tuple[str, ...], release: bool) -> Gradients:
        gradient, echoed = upstream.get("means2d"), upstream.get("echo")
        added = gradient
        if echoed is not None:
            added = -echoed if gradient is None else gradient - echoed
        if added is None or not added.any():
            if release:
                rendering.frame.release()
            return {}
        return rendering.gradients({"means2d": rendering.layout.spread(added)}, wanted, release)

    # An expanded scalar, which takes no memory.
    outputs = {"means2d": centres, "echo": centres.new_zeros(()).expand_as(centres)}
    results = attach(outputs, {name: inputs[name] for name in PROJECTED}, differentiate)
    return results["means2d"], results["echo"]
