"""Lists of the tiles that ellipses touch, as gsplat returns them in `meta`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from lumigrad.client.compat.gsplat.projection import LARGEST_EXTENT


@dataclass(frozen=True)
class Projected:
    """M Gaussians projected to pictures, pixels.

    Attributes:
        images: int64 [M] the number of each Gaussian's picture.
        means2d: [M, 2] centres.
        radii: [M, 2] half extents; 0 for culled Gaussians.
        conics: [M, 3] inverse covariances (xx, xy, yy); boxes depend on neither them nor opacities.
        opacities: [M].
        depths: [M] depths, by which they are sorted.
    """

    images: torch.Tensor
    means2d: torch.Tensor
    radii: torch.Tensor
    conics: torch.Tensor
    opacities: torch.Tensor
    depths: torch.Tensor


@dataclass(frozen=True)
class Intersections:
    """Pairs of tiles and Gaussians, sorted by picture, tile and depth.

    Attributes:
        tiles_per_gauss: int32 [M] the number of tiles that each Gaussian touches.
        isect_ids: int64 [L] picture, tile and bits of the depth.
        flatten_ids: int32 [L] the index of the Gaussian.
        offsets: int32 [I, tile rows, tile columns] the index at which the list of each tile begins.
    """

    tiles_per_gauss: torch.Tensor
    isect_ids: torch.Tensor
    flatten_ids: torch.Tensor
    offsets: torch.Tensor


def intersect(
    projected: Projected, images: int, tile_size: int, tile_width: int, tile_height: int, *, boxes: bool = False
) -> Intersections:
    """Lists the tiles that each Gaussian touches: its ellipse ends where its alpha falls below 1/255.

    Args:
        projected: the Gaussians.
        images: number of pictures.
        tile_size: pixels.
        tile_width: tiles in a row.
        tile_height: tiles in a column.
        boxes: list the tiles that the box of the radii meets instead.
    """
    if boxes:
        rows, (first, last) = _boxes(projected, tile_size, tile_width, tile_height)
    else:
        rows = _rows(projected, tile_size, tile_height)
        first, last = _columns(projected, *rows, tile_size, tile_width)
    widths = (last - first).clamp_min(0)
    entry = torch.repeat_interleave(torch.arange(len(widths), device=widths.device), widths)
    column = first[entry] + _positions(widths)
    gaussian, row = rows[0][entry], rows[1][entry]
    tiles_per_gauss = torch.zeros_like(projected.images).index_add_(0, rows[0], widths)
    tile = row * tile_width + column
    # The bits of positive floats sort like the floats.
    bits = projected.depths[gaussian].contiguous().view(torch.int32).long()
    image = projected.images[gaussian]
    tile_bits = (tile_width * tile_height).bit_length()
    keys = (((image << tile_bits) | tile) << 32) | bits
    keys, order = torch.sort(keys, stable=True)
    of_tile = (image * (tile_width * tile_height) + tile)[order]
    every = torch.arange(images * tile_width * tile_height, device=of_tile.device)
    offsets = torch.searchsorted(of_tile, every).int().reshape(images, tile_height, tile_width)
    return Intersections(tiles_per_gauss.int(), keys, gaussian[order].int(), offsets)


def _levels(projected: Projected) -> torch.Tensor:
    """Returns [M], the quadratic form at the border of the ellipse; negative if there is no ellipse."""
    levels = 2.0 * torch.log((255.0 * projected.opacities).clamp_min(math.exp(-1.0)))
    return levels.clamp_max(LARGEST_EXTENT**2)


def _rows(projected: Projected, tile_size: int, tile_height: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns [R] Gaussians and rows of tiles, one for each row that the box around an ellipse touches."""
    xx, xy, yy = projected.conics.unbind(-1)
    seen = (projected.radii > 0).all(dim=-1) & (_levels(projected) >= 0)
    determinants = torch.where(seen, xx * yy - xy * xy, 1.0).clamp_min(torch.finfo(torch.float32).tiny)
    extents = torch.sqrt(_levels(projected).clamp_min(0) * xx / determinants)
    y = projected.means2d[:, 1]
    first = torch.floor((y - extents) / tile_size).clamp(0, tile_height).long()
    last = (torch.floor((y + extents) / tile_size) + 1).clamp(0, tile_height).long()
    counts = torch.where(seen, last - first, 0).clamp_min(0)
    gaussian = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
    return gaussian, first[gaussian] + _positions(counts)


Pair = tuple[torch.Tensor, torch.Tensor]


def _boxes(projected: Projected, tile_size: int, tile_width: int, tile_height: int) -> tuple[Pair, Pair]:
    """Returns the same as `_rows` and `_columns`, for the boxes around the centres."""
    limits = torch.tensor([tile_width, tile_height], device=projected.means2d.device)
    first = torch.floor((projected.means2d - projected.radii) / tile_size).long().clamp_min(0).minimum(limits)
    last = torch.ceil((projected.means2d + projected.radii) / tile_size).long().clamp_min(0).minimum(limits)
    seen = (projected.radii > 0).all(dim=-1)
    counts = torch.where(seen, last[:, 1] - first[:, 1], 0).clamp_min(0)
    gaussian = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
    return (gaussian, first[gaussian, 1] + _positions(counts)), (first[gaussian, 0], last[gaussian, 0])


def _columns(
    projected: Projected, gaussian: torch.Tensor, row: torch.Tensor, tile_size: int, tile_width: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns [R], the first column that an ellipse touches within a row of tiles, and the one after the last."""
    xx, xy, yy = projected.conics[gaussian].double().unbind(-1)
    level = _levels(projected)[gaussian].double().clamp_min(0)
    x, y = projected.means2d[gaussian].double().unbind(-1)
    low, high = row * tile_size - y, (row + 1) * tile_size - y
    determinants = (xx * yy - xy * xy).clamp_min(1e-300)
    # The ellipse's rightmost point has y = -xy / yy times its x; the leftmost point is opposite.
    farthest = torch.sqrt(level * yy / determinants)
    height = torch.sqrt(level * xx / determinants)
    ends = []
    for side in (-1.0, 1.0):
        at = torch.clamp(-xy / yy * side * farthest, torch.maximum(low, -height), torch.minimum(high, height))
        root = torch.sqrt((xy * xy * at * at - xx * (yy * at * at - level)).clamp_min(0))
        ends.append(x + (-xy * at + side * root) / xx)
    first = torch.floor(ends[0] / tile_size).clamp(0, tile_width).long()
    last = (torch.floor(ends[1] / tile_size) + 1).clamp(0, tile_width).long()
    return first, last


def _positions(counts: torch.Tensor) -> torch.Tensor:
    """Returns 0, 1, … counts[0] - 1, 0, 1, … counts[1] - 1, …."""
    begins = torch.cumsum(counts, 0) - counts
    return torch.arange(int(counts.sum()), device=counts.device) - torch.repeat_interleave(begins, counts)
