"""The image formation of `exact` in float64 torch, all pixels against all spheres; autograd gives the gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from support.spheres.exact_views import View, nearest_depth

# Half a unit in the last place of float32.
ROUNDING = 2.0**-24


@dataclass(frozen=True)
class Blending:
    """How spheres are blended; `gamma` and `background` may require gradients."""

    gamma: Tensor
    background: Tensor
    max_depth: float
    min_depth: float = 0.0
    background_depth: float = 1e-6
    max_hits: int = 0


@dataclass(frozen=True)
class Rounding:
    """First-order estimates per pixel of the effect of rounding to float32."""

    color: Tensor
    alpha: Tensor
    depth: Tensor
    # Pixels where rounding decides whether a sphere is hit.
    undecided: Tensor


@dataclass(frozen=True)
class Chords:
    """The intersections of the rays of pixels [H, W] with spheres [N]."""

    chord: Tensor
    half_chord: Tensor
    depth: Tensor
    near: Tensor
    hit: Tensor


@dataclass(frozen=True)
class Exact:
    """One view. `shares` [H, W, N] are weights over their sum, the background being the rest."""

    color: Tensor
    alpha: Tensor
    depth: Tensor
    hits: Tensor
    shares: Tensor
    depths: Tensor
    maximum: Tensor
    total: Tensor
    farthest: Tensor
    rounding: Rounding

    def tracked(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Ids, depths and shares of the closest `count` hits; -1, -1 and 0 beyond the last."""
        ordered, ids = torch.sort(self.depths, dim=-1, stable=True)
        missing = count - ordered.shape[-1]
        if missing > 0:
            ordered = torch.nn.functional.pad(ordered, (0, missing), value=torch.inf)
            ids = torch.nn.functional.pad(ids, (0, missing))
        ordered, ids = ordered[..., :count], ids[..., :count]
        found = torch.isfinite(ordered)
        if self.shares.shape[-1]:
            shares = torch.where(found, torch.gather(self.shares, -1, ids), 0.0)
        else:
            shares = torch.zeros_like(ordered)
        return torch.where(found, ids, -1), torch.where(found, ordered, -1.0), shares


def render(
    views: Sequence[View], colors: Tensor, radii: Tensor, blending: Blending, opacities: Tensor | None = None
) -> list[Exact]:
    """Every view of one call."""
    nearest = nearest_depth(blending.min_depth, views)
    return [_blend(view, colors, radii, blending, opacities, nearest) for view in views]


def root(squares: Tensor) -> Tensor:
    """The square root, with derivative zero at zero, where a ray passes through a centre."""
    positive = squares > 0
    return torch.where(positive, torch.sqrt(torch.where(positive, squares, 1.0)), 0.0)


def _chords(view: View, radii: Tensor, nearest: Tensor, farthest: float) -> Chords:
    centres = view.centres
    distance = root((centres * centres).sum(-1))
    if view.rays is None:
        assert view.film is not None
        gaps = centres[:, :2] - view.film[..., None, :]
        chord = root((gaps * gaps).sum(-1))
        across, along = chord, centres[:, 2].abs()
        near = centres[:, 2] - radii
    else:
        rays = view.rays[..., None, :]
        gaps = centres - rays * distance[:, None]
        chord = root((gaps * gaps).sum(-1))
        along = (centres * rays).sum(-1)
        across = root(((centres - rays * along[..., None]) ** 2).sum(-1))
        near = distance - radii
    half_chord = root((radii + across) * (radii - across))
    ahead = (centres @ view.forward) >= 1e-6 * distance
    kept = ahead & (near >= nearest) & (near <= farthest)
    return Chords(chord, half_chord, along - half_chord, near, kept & (1 - chord / radii > 0))


def _limited(chords: Chords, max_hits: int) -> Tensor:
    """Hits, in order of `near`, up to the limit."""
    if not max_hits:
        return chords.hit
    order = torch.argsort(chords.near, stable=True)
    ranks = torch.cumsum(chords.hit[..., order].long(), -1)
    allowed = torch.empty_like(chords.hit)
    allowed[..., order] = ranks <= max_hits
    return chords.hit & allowed


def _blend(
    view: View, colors: Tensor, radii: Tensor, blending: Blending, opacities: Tensor | None, nearest: Tensor
) -> Exact:
    opacity = torch.ones_like(radii) if opacities is None else opacities
    chords = _chords(view, radii, nearest, blending.max_depth)
    hit = _limited(chords, blending.max_hits)
    gamma, depth_range = blending.gamma, blending.max_depth - nearest
    exponent = (1 - (chords.depth - nearest) / depth_range) / gamma * opacity
    background = blending.background_depth / gamma
    candidates = torch.where(hit, exponent, -torch.inf)
    floor = background.expand(*hit.shape[:2], 1)
    # The maximum cancels in every quotient, so it needs no derivative.
    maximum = torch.cat([candidates, floor], -1).amax(-1).detach()
    closeness = 1 - chords.chord / radii
    safe = torch.where(hit, exponent - maximum[..., None], 0.0)
    weights = torch.where(hit, closeness * opacity * torch.exp(safe), 0.0)
    background_weight = torch.exp(background - maximum)
    total = background_weight + weights.sum(-1)
    shares = weights / total[..., None]
    background_share = background_weight / total
    color = background_share[..., None] * blending.background + shares @ colors
    depths = torch.where(hit, chords.depth, torch.inf)
    seen = hit.any(-1)
    closest = depths.amin(-1) if depths.shape[-1] else torch.full_like(maximum, torch.inf)
    near = torch.where(hit, chords.near, -1.0)
    return Exact(
        color=color, alpha=1 - background_share, depth=torch.where(seen, torch.where(seen, closest, 0.0), -1.0),
        hits=hit.sum(-1), shares=shares, depths=depths.detach(), maximum=maximum, total=total,
        farthest=near.amax(-1) if near.shape[-1] else torch.full_like(maximum, -1.0),
        rounding=_rounding(view, colors, radii, opacity, blending, nearest, chords, maximum, total, color),
    )  # fmt: skip


@torch.no_grad()
def _rounding(
    view: View,
    colors: Tensor,
    radii: Tensor,
    opacity: Tensor,
    blending: Blending,
    nearest: Tensor,
    chords: Chords,
    maximum: Tensor,
    total: Tensor,
    color: Tensor,
) -> Rounding:
    distance = root((view.centres**2).sum(-1))
    length_error = 4 * ROUNDING * (distance + radii)
    kept = (chords.near >= nearest) & (chords.near <= blending.max_depth) & (view.centres @ view.forward > 0)
    reached = kept & (chords.chord < radii + length_error)
    grazing = kept & ((chords.chord - radii).abs() < length_error)
    # The half chord is a square root, whose error is largest where it is zero.
    worst = torch.sqrt(2 * radii * length_error)
    chord_error = torch.minimum(worst, radii * length_error / chords.half_chord.clamp_min(1e-12))
    depth_error = length_error + chord_error
    depth_range = blending.max_depth - nearest
    exponent = (1 - (chords.depth - nearest) / depth_range) / blending.gamma * opacity
    exponent_error = depth_error * opacity / (blending.gamma * depth_range) + 4 * ROUNDING * exponent.abs()
    closeness = (1 - chords.chord / radii).clamp_min(0)
    scale = opacity * torch.exp((exponent - maximum[..., None]).clamp_max(50))
    error = scale * (length_error / radii + closeness * exponent_error)
    share = torch.where(reached, (error / total[..., None]).clamp_max(1), 0.0)
    spread = (colors - color[..., None, :]).abs().amax(-1)
    depths = torch.where(chords.hit, chords.depth, torch.inf)
    depth = torch.zeros_like(maximum)
    if depths.shape[-1]:
        depth = torch.gather(depth_error, -1, depths.argmin(-1, keepdim=True))[..., 0]
    return Rounding((share * spread).sum(-1), share.sum(-1), depth, grazing.any(-1))
