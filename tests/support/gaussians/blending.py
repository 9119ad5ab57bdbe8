"""A reference of blending in float64 torch: all pixels with all Gaussians; marks pixels that depend on rounding."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from support.gaussians.case import Options

# Within this relative distance of a branch, a float32 engine may take the other branch.
MARGIN = 2e-4
# Gaussians whose depths differ by less than this (relative) may be blended in either order.
DEPTH_MARGIN = 3e-6


@dataclass(frozen=True)
class Splats:
    """Projected Gaussians, in any order: means [N, 2] px, conics [N, 3], opacities [N], depths [N]."""

    means2d: Tensor
    conics: Tensor
    opacities: Tensor
    depths: Tensor
    features: Tensor
    visible: Tensor
    undecided: Tensor
    # [P, N]: whether a pixel is in a tile that Inria's square touches; None: there are no tiles.
    reached: Tensor | None


@dataclass(frozen=True)
class Blended:
    """Per pixel [P]: features [P, F], transmittance, number of Gaussians blended, and whether the pixel is stable.

    `offsets` [P, N, 2], mean minus pixel, are in the graph: their gradients are those of the means for each pixel.
    They and `weights` [P, N] are in the order of depth, which is `order` [N].
    """

    features: Tensor
    transmittance: Tensor
    contributors: Tensor
    stable: Tensor
    offsets: Tensor
    weights: Tensor
    order: Tensor


def pixel_centres(width: int, height: int, centre: float) -> Tensor:
    """The centres x, y of all pixels, [H W, 2]."""
    y, x = torch.meshgrid(
        torch.arange(height, dtype=torch.float64), torch.arange(width, dtype=torch.float64), indexing="ij"
    )
    return torch.stack([x, y], -1).reshape(-1, 2) + centre


def _ordered(splats: Splats) -> tuple[Tensor, Splats]:
    order = torch.argsort(splats.depths.detach(), stable=True)
    return order, Splats(
        splats.means2d[order],
        splats.conics[order],
        splats.opacities[order],
        splats.depths[order],
        splats.features[order],
        splats.visible[order],
        splats.undecided[order],
        None if splats.reached is None else splats.reached[:, order],
    )


def blend(splats: Splats, pixels: Tensor, options: Options) -> Blended:
    """Front-to-back compositing (spec section 1.7); the stop excludes the Gaussian that would cross the limit."""
    order, splats = _ordered(splats)
    offsets = splats.means2d - pixels[:, None, :]
    a, b, c = splats.conics.unbind(-1)
    x, y = offsets.unbind(-1)
    sigma = (a * x * x + c * y * y) / 2 + b * x * y
    raw = splats.opacities * torch.exp(-sigma)
    alpha = raw.clamp_max(options.alpha_max)
    if options.semantics == "inria_depth":
        # The fork's gradient goes through the clamp (spec section 6, item 4).
        alpha = raw + (alpha - raw).detach()
    reached = splats.visible if splats.reached is None else splats.visible & splats.reached
    eligible = reached & (sigma >= 0) & (alpha >= options.alpha_min)
    with torch.no_grad():
        passing = torch.cumprod(torch.where(eligible, 1 - alpha, 1.0), -1)
        limit = options.transmittance_min
        blended = eligible & ((passing >= limit) if options.inria else (passing > limit))
        stable = _stable(splats, raw, eligible, passing, options)
    shares = torch.where(blended, alpha, 0.0)
    after = torch.cumprod(1 - shares, -1)
    before = torch.cat([after.new_ones(len(pixels), 1), after], -1)
    weights = shares * before[:, :-1]
    return Blended(weights @ splats.features, before[:, -1], blended.sum(-1), stable, offsets, weights, order)


def _stable(splats: Splats, raw: Tensor, eligible: Tensor, passing: Tensor, options: Options) -> Tensor:
    """Pixels [P] at which every branch is decided by a margin."""
    if not raw.shape[-1]:
        return torch.ones(len(raw), dtype=torch.bool)
    before = torch.cat([torch.ones_like(passing[:, :1]), passing[:, :-1]], -1)
    # Branches after the end of a pixel do not matter. Those after an uncertain end are covered by marking the end.
    live = before > options.transmittance_min
    reached = splats.visible if splats.reached is None else splats.visible & splats.reached

    def near(value: Tensor, limit: float) -> Tensor:
        return (value - limit).abs() < MARGIN * limit

    doubtful = reached & near(raw, options.alpha_min)
    doubtful |= eligible & (near(raw, options.alpha_max) | near(passing, options.transmittance_min))
    doubtful |= splats.undecided & (raw >= options.alpha_min / 2)
    depths = splats.depths.expand_as(raw)
    previous = torch.cummax(torch.where(eligible, depths, -torch.inf), -1).values
    previous = torch.cat([torch.full_like(previous[:, :1], -torch.inf), previous[:, :-1]], -1)
    gap = depths - previous
    doubtful |= eligible & (gap > 0) & (gap < DEPTH_MARGIN * depths.abs())
    return ~(doubtful & live).any(-1)
