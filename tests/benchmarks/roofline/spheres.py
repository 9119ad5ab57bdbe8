"""The work of the sphere kernels ("exact"): a million spheres at 1920x1080, counted on the CPU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from lumigrad.kernels.spheres import Camera, Settings, forward
from tests.benchmarks.roofline.device import Need
from tests.benchmarks.scene import CAMERA, GAMMA, MAX_DEPTH, Scene, scene

COUNT, WIDTH, HEIGHT = 1_000_000, 1920, 1080
TILE, WARP_WIDTH, WARP_HEIGHT = 16, 8, 4
SAMPLED_TILES = 200
# Instructions of a warp: to draw one sphere and to differentiate it, as Nsight Compute counts them with all that the
# kernels do beside; from the compiler's listings for compute capability 9.0, to prepare a sphere and to turn its row
# into gradients.
DRAW, DIFFERENTIATE, PREPARE, FINISH = 169, 323, 420, 700
# Bytes of a sphere: position, radius and colour; record; candidate pixels; row of gradients.
SPHERE, RECORD, RECTANGLE, ROW = 28, 64, 8, 32


@dataclass
class Work:
    """Counts for one view."""

    pairs: float  # Pairs of tiles and spheres.
    fetched: float  # Pairs before their tile has ended.
    visits: float  # Visits of warps at spheres.


def needs() -> dict[str, Need]:
    """The needs of the stages; sorting takes 8 bits of a key at a time."""
    work, pixels = count(scene(COUNT)), WIDTH * HEIGHT
    return {
        "prepare": Need(COUNT * (SPHERE + RECORD + RECTANGLE), COUNT / 32 * PREPARE),
        "sort": Need(COUNT * (4 + 4 + 4 * 16)),
        "bin": Need(COUNT * RECTANGLE + work.pairs * (2 * 16 + 4), work.pairs / 32 * 100),
        "draw": Need(work.fetched * (RECORD + RECTANGLE + 8) + pixels * 40, work.visits * DRAW),
        "draw_backward": Need(
            work.fetched * (RECORD + RECTANGLE + 8 + 2 * ROW) + pixels * 52, work.visits * DIFFERENTIATE
        ),
        "finish": Need(COUNT * (3 * ROW + RECORD + 2 * SPHERE), COUNT / 32 * FINISH),
    }


def count(given: Scene) -> Work:
    """Count the candidates of a sample of tiles; the share visited before pixels end is that of their hits."""
    camera = Camera.pulsar(CAMERA, WIDTH, HEIGHT)
    inputs = [torch.from_numpy(values) for values in (given.positions, given.colors, given.radii)]
    hits = forward(*inputs, [camera], Settings(GAMMA, MAX_DEPTH), outputs=("hits",)).outputs["hits"][0].numpy()
    x, y, radius = _discs(given)
    columns, rows = -(-WIDTH // TILE), -(-HEIGHT // TILE)
    chosen = np.linspace(0, columns * rows - 1, SAMPLED_TILES).astype(int)
    sums = np.zeros(3)
    for tile in chosen:
        left, top = tile % columns * TILE, tile // columns * TILE
        near = _overlap(x, y, radius, left, top, TILE, TILE)
        discs = (x[near], y[near], radius[near])
        covered = (
            np.hypot(
                discs[0][:, None, None] - left - np.arange(TILE) - 0.5,
                discs[1][:, None, None] - top - np.arange(TILE)[:, None] - 0.5,
            )
            < np.asarray(discs[2])[:, None, None]
        )
        seen = hits[top : top + TILE, left : left + TILE]
        share = min(1.0, seen.sum() / max(covered[:, : seen.shape[0], : seen.shape[1]].sum(), 1))
        warps = sum(
            _overlap(*discs, left + dx, top + dy, WARP_WIDTH, WARP_HEIGHT).sum()
            for dx in range(0, TILE, WARP_WIDTH)
            for dy in range(0, TILE, WARP_HEIGHT)
        )
        sums += near.sum(), near.sum() * share, warps * share
    return Work(*(sums * columns * rows / SAMPLED_TILES))


def _discs(given: Scene) -> tuple[NDArray[np.float32], ...]:
    """Centres and radii of spheres in pixels; the camera is at the origin and looks along +z."""
    focal = CAMERA[6] / CAMERA[7] * WIDTH
    scale = focal / given.positions[:, 2]
    return given.positions[:, 0] * scale + WIDTH / 2, given.positions[:, 1] * scale + HEIGHT / 2, given.radii * scale


def _overlap(
    x: NDArray[np.float32], y: NDArray[np.float32], radius: NDArray[np.float32], left: int, top: int, w: int, h: int
) -> NDArray[np.bool_]:
    across = (x + radius > left) & (x - radius < left + w)
    return across & (y + radius > top) & (y - radius < top + h)
