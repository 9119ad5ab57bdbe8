"""The work of the kernels for a million Gaussians at 1920x1080, with the blending of a sample of tiles, on the CPU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from lumigrad.kernels.gaussians import Camera, Gaussians, Settings, forward
from tests.benchmarks.gaussian_scene import Scene
from tests.benchmarks.roofline.device import Need

COUNT, WIDTH, HEIGHT = 1_000_000, 1920, 1080
# A warp works on half a tile, in blocks of pixels, and differentiates a segment of a list.
TILE, HALVES, BLOCK, GROUP, SEGMENT = 16, 2, (4, 8), 32, 256
SAMPLED_TILES = 120
# Instructions of a warp, counted in the compiler's listings: to load 32 Gaussians and find the blocks that they reach;
# for a Gaussian that reaches a block of half a tile, and for each block, to blend it, and to differentiate it.
LOAD, BLEND, BLEND_BLOCK, LOAD_BACKWARD, DIFFERENTIATE, DIFFERENTIATE_BLOCK = 186, 18, 22, 220, 93, 39
# Likewise to project and colour a Gaussian, forward and backward, and to list 32 pairs with tiles.
PROJECT, PROJECT_BACKWARD, LIST = 1450, 3000, 330
# Bytes of a Gaussian: geometry, spherical harmonics of degree 3, record, row of gradients.
GEOMETRY, HARMONICS, RECORD, ROW = 44, 192, 64, 44
# Bytes of a pixel at the start of a segment: transmittance and colour.
KEPT = 16


@dataclass
class Work:
    """Counts for one view."""

    gaussians: int
    visible: int
    pixels: int
    pairs: float  # Pairs of tiles and Gaussians.
    segments: float  # Segments of lists, but the first of each.
    fetched: float  # Pairs of halves of tiles and Gaussians before the half has ended.
    visits: float  # Fetched pairs in which the Gaussian reaches a block of pixels.
    blocks: float  # Blocks that are reached.


def needs(work: Work) -> dict[str, Need]:
    """The needs of the stages; sorting takes 8 bits of a key at a time.

    Projecting writes a key and a number of tiles. Binning gathers these numbers, sums them, and reads half a record.
    """
    n, seen, pixels = work.gaussians, work.visible, work.pixels
    # The halves of a tile read the same records at about the same time.
    records = work.fetched / HALVES * (RECORD + 4)
    return {
        "project": Need(n * (GEOMETRY + RECORD + 2 * 4) + seen * HARMONICS, n / 32 * PROJECT),
        "sort": Need(n * (4 + 4 + 4 * 16)),
        "bin": Need(n * 5 * 4 + seen * 32 + work.pairs * (44 + 2 * 16 + 4), work.pairs / 32 * LIST),
        "blend": Need(
            records + pixels * 24,
            work.fetched / GROUP * LOAD + work.visits * BLEND + work.blocks * BLEND_BLOCK,
        ),
        "blend_backward": Need(
            records + work.pairs * 2 * ROW + work.segments * 2 * KEPT * TILE**2 + pixels * 20 + n * ROW,
            work.fetched / GROUP * LOAD_BACKWARD + work.visits * DIFFERENTIATE + work.blocks * DIFFERENTIATE_BLOCK,
        ),
        "project_backward": Need(
            n * (ROW + RECORD + 2 * GEOMETRY) + seen * HARMONICS + n * HARMONICS, n / 32 * PROJECT_BACKWARD
        ),
    }


def count(given: Scene) -> Work:
    """Projects all Gaussians, and blends some tiles."""
    gaussians = Gaussians(**{name: torch.from_numpy(value) for name, value in given.tensors.items()})
    camera = Camera.opencv(*given.intrinsics, given.rotation, given.translation, given.width, given.height)
    names = ("radii", "means2d", "depths", "conics", "projected_opacities")
    outputs = forward(gaussians, [camera], Settings(), outputs=names).outputs
    values = {name: outputs[name][0].numpy().astype(np.float64) for name in names}
    seen = np.flatnonzero((values["radii"] > 0).all(-1))
    seen = seen[np.argsort(values["depths"][seen], kind="stable")]
    values = {name: value[seen] for name, value in values.items()}
    columns, rows = -(-given.width // TILE), -(-given.height // TILE)
    chosen = np.linspace(0, columns * rows - 1, SAMPLED_TILES).astype(int)
    sums = np.sum([_tile(values, tile % columns, tile // columns) for tile in chosen], 0)
    pixels = given.width * given.height
    return Work(COUNT, len(seen), pixels, *(sums * columns * rows / SAMPLED_TILES))


def _tile(values: dict[str, NDArray[np.float64]], column: int, row: int) -> tuple[int, int, int, int, int]:
    """Pairs, segments, fetched pairs, visits of warps and blocks of pixels in one tile."""
    origin = np.array([column, row]) * TILE
    near = (np.abs(values["means2d"] - (origin + TILE / 2)) <= values["radii"] + TILE / 2).all(-1)
    mean, conic, opacity = (values[name][near] for name in ("means2d", "conics", "projected_opacities"))
    y, x = np.mgrid[:TILE, :TILE] + 0.5
    dx, dy = mean[:, 0, None, None] - origin[0] - x, mean[:, 1, None, None] - origin[1] - y
    power = (
        0.5 * (conic[:, 0, None, None] * dx**2 + conic[:, 2, None, None] * dy**2) + conic[:, 1, None, None] * dx * dy
    )
    alpha = np.minimum(opacity[:, None, None] * np.exp(-power), 0.99)
    alpha[alpha < 1 / 255] = 0
    alpha = alpha[alpha.any((1, 2))]
    # The first Gaussian that would take a pixel below the limit, and all behind it, are not blended.
    is_open = np.cumprod(1 - alpha, 0) > 1e-4
    halves = (len(alpha), HALVES, TILE**2 // HALVES)
    open_halves = is_open.reshape(halves).any(2).sum(0)
    fetched = np.minimum(open_halves // GROUP * GROUP + GROUP, len(alpha))
    blocks = (len(alpha), HALVES, TILE // BLOCK[0] // HALVES, BLOCK[0], TILE // BLOCK[1], BLOCK[1])
    reached = (alpha > 0).reshape(blocks).any((3, 5))
    reached &= (np.arange(len(alpha))[:, None] < fetched)[:, :, None, None]
    segments = max(len(alpha) - 1, 0) // SEGMENT
    return len(alpha), segments, int(fetched.sum()), int(reached.any((2, 3)).sum()), int(reached.sum())
