"""The image formation of the Gaussian engine in float64 torch, one view at a time; autograd gives the gradients."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from support.gaussians.blending import MARGIN, Blended, Splats, blend, pixel_centres
from support.gaussians.case import Options
from support.gaussians.colors import seen_colors
from support.gaussians.projection import Camera, Projected, covariances_of, project, symmetric

TILE = 16
# Inria's squares within this fraction of a tile from its edge may touch it or not, depending on rounding.
EDGE = 2e-5


@dataclass(frozen=True)
class Part:
    """A slice of Gaussians with one transform: the camera relative to it, and the slice of the scene's tensors."""

    camera: Camera
    means: Tensor
    opacities: Tensor
    quats: Tensor | None = None
    scales: Tensor | None = None
    covariances: Tensor | None = None
    sh: Tensor | None = None
    colors: Tensor | None = None


@dataclass(frozen=True)
class Frame:
    """One view: images [H, W, ..], results of each Gaussian [N, ..], and which of them do not depend on rounding.

    In `stable` [H, W] pixels and `sure` [N] Gaussians every branch has a margin.
    """

    color: Tensor
    alpha: Tensor
    transmittance: Tensor
    depth: Tensor
    expected_depth: Tensor
    inverse_depth: Tensor
    contributors: Tensor
    radii: Tensor
    means2d: Tensor
    depths: Tensor
    conics: Tensor
    projected_opacities: Tensor
    stable: Tensor
    sure: Tensor
    # Mean minus pixel for every pixel and Gaussian, [H W, N, 2], and weights [H W, N], in the order of depth, and that
    # order [N].
    offsets: Tensor
    weights: Tensor
    order: Tensor


@dataclass(frozen=True)
class _Shapes:
    """Projected Gaussians [N]: conics, opacities, radii in pixels, and which are visible and certain."""

    conics: Tensor
    opacities: Tensor
    radii: Tensor
    visible: Tensor
    sure: Tensor
    undecided: Tensor


def _covariances(part: Part, options: Options) -> Tensor:
    if part.covariances is not None:
        return symmetric(part.covariances)
    scaled = part.scales * options.scale_modifier
    if options.semantics == "inria_depth":
        # The fork's gradient omits the factor (spec section 6, item 2).
        scaled = part.scales + (scaled - part.scales).detach()
    return covariances_of(part.quats, scaled, normalised=not options.inria)


def _near_whole(values: Tensor, margin: float) -> Tensor:
    return ((values - values.round()).abs() < margin).any(-1)


def _gsplat_radii(spread: Tensor, opacities: Tensor, options: Options) -> Tensor:
    # The radius at which alpha falls below alpha_min; for opacities up to 1 it is within gsplat's limit of 3.33.
    reach = torch.sqrt(2 * torch.log((opacities / options.alpha_min).clamp_min(1)))
    return reach[:, None] * torch.sqrt(torch.stack([spread[:, 0, 0], spread[:, 1, 1]], -1))


def _inria_radii(spread: Tensor, determinant: Tensor) -> Tensor:
    middle = (spread[:, 0, 0] + spread[:, 1, 1]) / 2
    largest = middle + torch.sqrt((middle**2 - determinant).clamp_min(0.1))
    return (3 * torch.sqrt(largest))[:, None].expand(-1, 2)


def _tiles(means2d: Tensor, radii: Tensor, size: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """First tile and the one after the last [N, 2] that Inria's square touches; whether rounding decides an edge."""
    grid = torch.ceil(size / TILE)
    edges = [(means2d - radii) / TILE, (means2d + radii + TILE - 1) / TILE]
    first, last = (torch.minimum(torch.trunc(edge).clamp_min(0), grid) for edge in edges)
    return first, last, _near_whole(torch.cat(edges, -1), EDGE)


@torch.no_grad()
def _extents(
    camera: Camera, seen: Projected, spread: Tensor, determinant: Tensor, opacities: Tensor, options: Options
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Radii, visible Gaussians, sure ones, and those that a branch here may cull."""
    size = torch.tensor([camera.width, camera.height], dtype=torch.float64)
    visible = seen.visible & (determinant > 0)
    if options.inria:
        raw = _inria_radii(spread, determinant)
        radii = raw.ceil()
        first, last, between = _tiles(seen.means2d - options.pixel_center, radii, size)
        visible = visible & ((last - first).clamp_min(0).prod(-1) > 0)
        undecided = between | _near_whole(raw, MARGIN)
        return radii, visible, ~(undecided | seen.undecided), undecided
    raw = _gsplat_radii(spread, opacities, options)
    radii = raw.ceil()
    clipped = (radii <= options.radius_clip).all(-1)
    visible = visible & (opacities >= options.alpha_min) & ~clipped
    means2d = seen.means2d + 0.5 - options.pixel_center
    inside = ((means2d + radii > 0) & (means2d - radii < size)).all(-1)
    rounded = _near_whole(raw, MARGIN)
    edges = torch.cat([means2d + radii, means2d - radii - size], -1)
    faint = (opacities / options.alpha_min - 1).abs() < MARGIN
    sure = ~(rounded | faint | (edges.abs() < MARGIN).any(-1) | seen.undecided)
    undecided = rounded & (raw < options.radius_clip + 1).all(-1) if options.radius_clip else torch.zeros_like(sure)
    return radii, visible & inside, sure, undecided


def _shapes(part: Part, seen: Projected, options: Options) -> _Shapes:
    """Conics, compensated opacities and radii (spec sections 1.4 and 1.5)."""
    turned = part.camera.rotation @ _covariances(part, options) @ part.camera.rotation.T
    sharp = seen.jacobian @ turned @ seen.jacobian.transpose(-1, -2)
    spread = sharp + options.eps2d * torch.eye(2, dtype=torch.float64)

    def determinant(matrix: Tensor) -> Tensor:
        return matrix[:, 0, 0] * matrix[:, 1, 1] - matrix[:, 0, 1] * matrix[:, 1, 0]

    whole = determinant(spread)
    conics = torch.stack([spread[:, 1, 1], -spread[:, 0, 1], spread[:, 0, 0]], -1) / whole[:, None]
    opacities, floor = part.opacities, torch.zeros_like(seen.visible)
    if options.antialiased:
        ratio = determinant(sharp) / whole
        floor = (ratio.detach() / 2.5e-5 - 1).abs() < 1e-2
        opacities = opacities * torch.sqrt(ratio.clamp_min(2.5e-5))
    radii, visible, sure, undecided = _extents(part.camera, seen, spread, whole, opacities, options)
    return _Shapes(conics, opacities, radii, visible, sure, undecided | floor | seen.undecided)


def _degree(sh: Tensor, options: Options) -> int:
    return round(sh.shape[1] ** 0.5) - 1 if options.sh_degree is None else options.sh_degree


def _reached(means2d: Tensor, radii: Tensor, pixels: Tensor, camera: Camera) -> Tensor:
    """[P, N]: pixels in tiles that Inria's squares touch; pixels are counted in whole numbers."""
    size = torch.tensor([camera.width, camera.height], dtype=torch.float64)
    first, last, _ = _tiles(means2d, radii, size)
    tile = torch.floor(pixels / TILE)[:, None, :]
    return ((tile >= first) & (tile < last)).all(-1)


def render(parts: list[Part], background: Tensor, options: Options) -> Frame:
    """Renders one view of all parts; `background` [D]. Their cameras differ only in the pose relative to the part."""
    camera = parts[0].camera
    seen = [project(part.camera, part.means, options) for part in parts]
    shapes = [_shapes(part, view, options) for part, view in zip(parts, seen, strict=True)]
    colors, black = [], []
    for part in parts:
        if part.sh is None:
            colors.append(part.colors)
            black.append(torch.zeros(len(part.means), dtype=torch.bool))
        else:
            color, near = seen_colors(part.sh, part.means, part.camera.eye, _degree(part.sh, options))
            colors.append(color)
            black.append(near)
    means2d, centre = torch.cat([view.means2d for view in seen]), options.pixel_center
    depths = torch.cat([view.points[:, 2] for view in seen])
    visible = torch.cat([shape.visible for shape in shapes])
    radii = torch.cat([shape.radii for shape in shapes])
    pixels = pixel_centres(camera.width, camera.height, centre)
    # The fork's depth image has no gradient by the depths of Gaussians (spec section 6, item 1).
    depth_feature = depths.detach() if options.semantics == "inria_depth" else depths
    splats = Splats(
        means2d=means2d,
        conics=torch.cat([shape.conics for shape in shapes]),
        opacities=torch.cat([shape.opacities for shape in shapes]),
        depths=depths,
        features=torch.cat([torch.cat(colors), torch.stack([depth_feature, 1 / depths], -1)], -1),
        visible=visible,
        undecided=torch.cat([shape.undecided for shape in shapes]) | torch.cat(black),
        reached=_reached(means2d.detach() - centre, radii, pixels - centre, camera) if options.inria else None,
    )
    sure = torch.cat([shape.sure for shape in shapes])
    return _frame(splats, blend(splats, pixels, options), radii, sure, background, camera)


def _frame(splats: Splats, blended: Blended, radii: Tensor, sure: Tensor, background: Tensor, camera: Camera) -> Frame:
    height, width = camera.height, camera.width
    transmittance = blended.transmittance
    color = blended.features[:, :-2] + transmittance[:, None] * background
    depth, alpha = blended.features[:, -2], 1 - transmittance

    def kept(values: Tensor) -> Tensor:
        return torch.where(splats.visible.reshape(-1, *[1] * (values.ndim - 1)), values, 0.0)

    return Frame(
        color=color.reshape(height, width, -1), alpha=alpha.reshape(height, width),
        transmittance=transmittance.reshape(height, width), depth=depth.reshape(height, width),
        expected_depth=(depth / alpha.clamp_min(1e-10)).reshape(height, width),
        inverse_depth=blended.features[:, -1].reshape(height, width),
        contributors=blended.contributors.reshape(height, width), radii=kept(radii).int(),
        means2d=kept(splats.means2d), depths=kept(splats.depths), conics=kept(splats.conics),
        projected_opacities=kept(splats.opacities), stable=blended.stable.reshape(height, width), sure=sure,
        offsets=blended.offsets, weights=blended.weights, order=blended.order,
    )  # fmt: skip
