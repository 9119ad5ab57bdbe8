"""The work of the kernels for Gaussians: a million at 1920x1080, and the blending of a sample of tiles, on the CPU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from lumigrad.kernels.gaussians import Camera, Gaussians, Settings, forward
from tests.benchmarks.gaussians.scene import Scene
from tests.benchmarks.roofline.device import Need

COUNT, WIDTH, HEIGHT = 1_000_000, 1920, 1080
TILE, WARP = 16, (4, 8)
SAMPLED_TILES = 120
# Instructions of a warp, counted in the compiler's listings: to see that a Gaussian is too faint, to blend it, to
# differentiate it; to test 32 Gaussians against a warp's pixels; to project one, to colour it, and both ways back.
FAINT, BLEND, DIFFERENTIATE, TEST, PROJECT, PROJECT_BACKWARD = 24, 42, 137, 95, 1450, 3000
# The same to list 32 pairs with tiles, and to hand over a Gaussian's gradients in a tile.
LIST, HAND_OVER = 330, 16
# Bytes of a Gaussian: geometry, spherical harmonics of degree 3, record, row of gradients.
GEOMETRY, HARMONICS, RECORD, ROW = 44, 192, 64, 44


@dataclass
class Work:
    """Numbers of things, for one view."""

    gaussians: int
    visible: int
    pixels: int
    pairs: float  # Of tiles and Gaussians.
    fetched: float  # Pairs before their tile has ended.
    visits: float  # Of warps at Gaussians.
    blended: float  # Visits in which a pixel took part.


def needs(work: Work) -> dict[str, Need]:
    """What the stages need; sorting takes 8 bits of a key at a time.

    Projecting writes a key and a number of tiles. Binning gathers these numbers, sums them, and reads half a record.
    """
    n, seen, pixels = work.gaussians, work.visible, work.pixels
    tests = work.fetched / 32 * 8 * TEST
    faint = (work.visits - work.blended) * FAINT
    return {
        "project": Need(n * (GEOMETRY + RECORD + 2 * 4) + seen * HARMONICS, n / 32 * PROJECT),
        "sort": Need(n * (4 + 4 + 4 * 16)),
        "bin": Need(n * 5 * 4 + seen * 32 + work.pairs * (44 + 2 * 16 + 4), work.pairs / 32 * LIST),
        "blend": Need(work.fetched * (RECORD + 4) + pixels * 24, tests + faint + work.blended * BLEND),
        "blend_backward": Need(
            work.fetched * (RECORD + 4) + work.pairs * 2 * ROW + pixels * 20 + n * ROW,
            tests + faint + work.blended * DIFFERENTIATE + work.fetched * HAND_OVER,
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


def _tile(values: dict[str, NDArray[np.float64]], column: int, row: int) -> tuple[int, int, int, int]:
    """Pairs, fetched pairs, visits of warps and those that blend, in one tile."""
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
    after = np.cumprod(1 - alpha, 0)
    # The first that would take a pixel below the limit, and all behind it, are not blended.
    open_pixels = after > 1e-4
    fetched = min(len(alpha), int(open_pixels.any((1, 2)).sum()) // 256 * 256 + 256)
    warps = (len(alpha), TILE // WARP[0], WARP[0], TILE // WARP[1], WARP[1])
    reached = (alpha > 0).reshape(warps).any((2, 4))
    still_open = np.concatenate([np.ones((1, *reached.shape[1:]), bool), open_pixels.reshape(warps).any((2, 4))[:-1]])
    blends = (open_pixels & (alpha > 0)).reshape(warps).any((2, 4))
    return len(alpha), fetched, int((reached & still_open).sum()), int(blends.sum())
