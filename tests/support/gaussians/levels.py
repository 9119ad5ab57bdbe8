"""A random city in pages with levels of detail, which takes no time to make and has any number of Gaussians."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lumigrad.client import Camera, Gaussians
from lumigrad.client.base.arrays import Float32
from lumigrad.client.formats.levels import GaussianLevels
from lumigrad.client.formats.levels.pages import levels_of

# Edge length of a page's cube, scene units.
EDGE = 4.0


def city(side: int, page_rows: int = 1024, sh_degree: int = 1, seed: int = 0) -> GaussianLevels:
    """A square of `side` x `side` pages on the ground, y down, centred on the origin; each level is random anew."""
    depth = levels_of(page_rows)
    counts = np.maximum(1, page_rows // 4 ** np.arange(depth))
    places = (np.stack(np.meshgrid(np.arange(side), np.arange(side)), -1).reshape(-1, 2) - (side - 1) / 2) * EDGE
    centres = np.stack([places[:, 0], np.zeros(side * side), places[:, 1]], axis=1)
    sizes = 0.1 * EDGE / np.sqrt(counts)

    def read(page: int, level: int) -> Gaussians:
        rng = np.random.default_rng((seed, page, level))
        count, size = int(counts[level]), sizes[level]
        return Gaussians(
            centres[page] + rng.uniform(-EDGE / 2, EDGE / 2, (count, 3)),
            rng.normal(size=(count, 4)),
            rng.uniform(0.2, 1.0, (count, 3)) * size,
            rng.uniform(0.2, 0.9, count),
            sh=rng.normal(scale=0.5, size=(count, (sh_degree + 1) ** 2, 3)),
        )

    reach = np.array([[-1], [1]]) * (EDGE / 2 + 3 * sizes)[:, None, None]
    return GaussianLevels(
        bounds=(centres[:, None, None] + reach).astype(np.float32),
        counts=np.tile(counts, (side * side, 1)).astype(np.int64),
        errors=np.tile((sizes - sizes[0]), (side * side, 1)).astype(np.float32),
        sh_degree=sh_degree,
        antialiased=False,
        source=read,
    )


def joined(levels: GaussianLevels, places: list[tuple[int, int]]) -> Gaussians:
    """The rows of some levels of pages as a plain scene."""
    parts = [levels.read(page, level) for page, level in places]
    names = ("means", "quats", "scales", "opacities", "sh")
    return Gaussians(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def as_drawn(levels: GaussianLevels, places: list[tuple[int, int]]) -> Gaussians:
    """The same rows as calls that are not differentiated draw them: each level of each page is rounded."""
    return joined(replace(levels, source=lambda page, level: rounded(levels.read(page, level))), places)


def rounded(rows: Gaussians) -> Gaussians:
    """The rows of one level of a page as the worker keeps them for calls that are not differentiated."""
    assert rows.scales is not None and rows.quats is not None and rows.sh is not None
    largest = np.abs(rows.quats).max(axis=1, keepdims=True)
    quats = np.divide(rows.quats, largest, out=np.zeros_like(rows.quats), where=largest > np.float32(1e-18))
    sh = rows.sh.copy()
    sh[:, 0] = _as_float16(sh[:, 0])[0]
    sh[:, 1:] = _as_bytes(sh[:, 1:])
    return Gaussians(rows.means, _in_steps(quats), _as_float16(rows.scales)[0], _in_steps(rows.opacities), sh=sh)


def _in_steps(values: Float32) -> Float32:
    return np.rint(values * np.float32(32767)) * np.float32(1 / 32767)


def _as_float16(values: Float32) -> tuple[Float32, int]:
    """Values as float16 times 2**exponent, which makes the largest one 2**14 to 2**15; and the exponent."""
    exponent = max(int(np.frexp(np.abs(values).max(initial=0))[1]) - 15, -102)
    return np.ldexp(np.ldexp(values, -exponent).astype(np.float16).astype(np.float32), exponent), exponent


def _as_bytes(values: Float32) -> Float32:
    """Rows [N, ..] in steps of each row, about 1/127 of its largest value."""
    if not values.size:
        return values
    largest = np.abs(values).max(axis=(1, 2), keepdims=True)
    _, exponent = _as_float16(largest)
    steps = np.ldexp(largest, -exponent) * np.float32(1025 / 1024 / 127) + np.float32(2**-24)
    steps = steps.astype(np.float16).astype(np.float32)
    return np.rint(np.ldexp(values, -exponent) / steps) * np.ldexp(steps, exponent)


def levels_of_pages(levels: GaussianLevels, cameras: Camera | list[Camera], error_px: float) -> list[tuple[int, int]]:
    """The level of each page by the documented rule, as if each camera saw the page."""
    low, high = levels.bounds[:, 0].astype(np.float64).swapaxes(0, 1)
    scale = np.zeros(len(levels))
    for camera in [cameras] if isinstance(cameras, Camera) else cameras:
        away = np.linalg.norm(np.maximum(np.maximum(low - camera.position, camera.position - high), 0), axis=1)
        scale = np.maximum(scale, camera.K[0, 0] / np.maximum(away, 0.01))
    found = (levels.errors * scale[:, None] <= error_px).sum(axis=1) - 1
    return list(enumerate(found.tolist()))
