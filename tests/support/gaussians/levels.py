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
    sh = rows.sh.copy()
    sh[:, 0] = _as_float16(sh[:, 0])
    if sh.shape[1] > 1:
        sh[:, 1:] = _as_brightness_and_colours(sh[:, 1:], (8, 8, 8) if sh.shape[1] <= 9 else (5, 5, 4))
    opacities = _in_steps(rows.opacities, 65535)
    return Gaussians(rows.means, _directed(rows.quats), _as_float16(rows.scales), opacities, sh=sh)


def _in_steps(values: Float32, steps: int) -> Float32:
    return np.rint(values * np.float32(steps)) * np.float32(1 / steps)


def _directed(quats: Float32) -> Float32:
    """Quaternions over their largest component, the first of them if several are, and in steps; 0 if they are short."""
    largest = np.take_along_axis(quats, np.abs(quats).argmax(axis=1)[:, None], axis=1)
    long_enough = np.abs(largest) > np.float32(1e-18)
    return _in_steps(np.divide(quats, largest, out=np.zeros_like(quats), where=long_enough), 8191)


def _as_float16(values: Float32) -> Float32:
    """Values as float16 times a power of two, which makes the largest one 2**14 to 2**15."""
    exponent = max(_exponent(values) - 14, -102)
    return np.ldexp(np.ldexp(values, -exponent).astype(np.float16).astype(np.float32), exponent)


def _exponent(values: Float32) -> int:
    """The exponent of the largest value, as a power of two that is not larger; -127 if it is below 2**-126."""
    return max(int(np.frexp(np.abs(values).max(initial=0) or np.float32(2.0**-127))[1]) - 1, -127)


def _as_brightness_and_colours(harmonics: Float32, bits: tuple[int, int, int]) -> Float32:
    """Harmonics [N, K, 3] whose brightness and two differences of colours are numbers of so many bits."""
    third, half, sixth = (np.float32(1 / divisor) for divisor in (3, 2, 6))
    red, green, blue = np.moveaxis(harmonics, 2, 0)
    y, o, c = (
        _in_steps_of_rows(plane, 2 ** (length - 1) - 1)
        for plane, length in zip(
            (
                red * third + green * third + blue * third,
                red * half - blue * half,
                green * third - (red * sixth + blue * sixth),
            ),
            bits,
            strict=True,
        )
    )
    return np.stack([y + o - c, y + np.float32(2) * c, y - o - c], axis=2)


def _in_steps_of_rows(values: Float32, largest_number: int) -> Float32:
    """Rows [N, K] in steps of each row: a float32 with two bits behind its leading one."""
    if not values.size:
        return values
    needed = np.abs(values).max(axis=1, keepdims=True) * np.float32(1 / largest_number)
    exponent = max(_exponent(needed) + 1, -102)
    mantissas, exponents = np.frexp(np.ldexp(needed, -exponent))
    steps = np.ldexp(np.maximum(np.ldexp(np.ceil(mantissas * 8) / 8, exponents), np.float32(2**-15)), exponent)
    return np.clip(np.rint(values / steps), -largest_number, largest_number) * steps


def levels_of_pages(levels: GaussianLevels, cameras: Camera | list[Camera], error_px: float) -> list[tuple[int, int]]:
    """The level of each page by the documented rule, as if each camera saw the page."""
    low, high = levels.bounds[:, 0].astype(np.float64).swapaxes(0, 1)
    scale = np.zeros(len(levels))
    for camera in [cameras] if isinstance(cameras, Camera) else cameras:
        away = np.linalg.norm(np.maximum(np.maximum(low - camera.position, camera.position - high), 0), axis=1)
        scale = np.maximum(scale, camera.K[0, 0] / np.maximum(away, 0.01))
    found = (levels.errors * scale[:, None] <= error_px).sum(axis=1) - 1
    return list(enumerate(found.tolist()))
