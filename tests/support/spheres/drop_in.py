"""Runs cases with `lumigrad.client.compat.pulsar.Renderer`, like code written for the original."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lumigrad.client.compat.pulsar import Renderer
from support.spheres.case import Floats, SphereCase


@dataclass(frozen=True)
class Dropped:
    """The results; gradients by the names of the protocol. A batch keeps its first axis."""

    image: Floats
    info: Floats | None
    gradients: dict[str, Floats]


def renderer_of(case: SphereCase, target: str) -> Renderer:
    """The module for a case."""
    return Renderer(
        case.width,
        case.height,
        max(len(case.radii), 1),
        orthogonal_projection=case.orthogonal,
        right_handed_system=case.right_handed,
        background_normalized_depth=case.background_depth,
        n_channels=case.channels,
        n_track=case.n_track,
        target=target,
    )


def render_dropped_in(cases: Sequence[SphereCase], target: str, *, batched: bool, min_depth: float) -> Dropped:
    """Forward and `backward()` of one case, or of several as a batch."""
    first = cases[0]
    names = ("positions", "colors", "radii", "camera", "opacities")

    def leaf(name: str) -> torch.Tensor | None:
        if getattr(first, name) is None:
            return None
        rows = np.stack([getattr(case, name) for case in cases])
        return torch.from_numpy(rows if batched else rows[0]).clone().requires_grad_()

    leaves = {name: leaf(name) for name in names}
    arguments = [leaves[name] for name in names[:4]]
    result = renderer_of(first, target)(
        *arguments,
        first.gamma,
        first.max_depth,
        min_depth=min_depth,
        bg_col=torch.from_numpy(first.background),
        opacity=leaves["opacities"],
        percent_allowed_difference=first.allowed_difference,
        max_n_hits=first.max_hits or 4294967295,
        mode=int(first.hits_only),
        return_forward_info=True,
        first_R_then_T=first.first_r_then_t,
    )
    image, info = result
    if first.hits_only:
        assert info is None
        return Dropped(image.detach().numpy(), None, {})
    upstream = np.stack([case.output_gradient for case in cases])
    image.backward(torch.from_numpy(upstream if batched else upstream[0]))
    gradients = {
        "cameras" if name == "camera" else name: value.grad.numpy()
        for name, value in leaves.items()
        if value is not None and value.grad is not None
    }
    return Dropped(image.detach().numpy(), info.numpy(), gradients)
