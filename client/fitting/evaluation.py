"""Scores a fit by PSNR and SSIM on held-out photographs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from lumigrad.client.base.arrays import Array
from lumigrad.client.base.extras import require
from lumigrad.client.calls.scenes import stored
from lumigrad.client.client import Client
from lumigrad.client.fitting.photograph import Photograph
from lumigrad.client.fitting.shot import Shot
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.handle import Scene, SceneHandle

# The radius of SSIM's Gaussian window, pixels: 11x11.
_RADIUS, _SIGMA = 5, 1.5
# The rows that are compared at a time.
_BAND_ROWS = 64
# Wang et al., "Image Quality Assessment: From Error Visibility to Structural Similarity" (2004), for values 0 to 1.
_C1, _C2 = 0.01**2, 0.03**2
# Limits the PSNR: equal images have 120 dB.
_LEAST_ERROR = 1e-12


def psnr(picture: Array, target_image: Array, mask: Array | None = None) -> float:
    """Returns the PSNR in dB of images [H, W, K] with values from 0 to 1; the mask [H, W] weights their pixels."""

    def squares(rows: slice) -> Array:
        difference = np.asarray(picture[rows], np.float64) - target_image[rows]
        return np.asarray(np.square(difference).mean(axis=-1))

    return float(-10 * np.log10(max(_mean(squares, len(picture), mask), _LEAST_ERROR)))


def ssim(picture: Array, target_image: Array, mask: Array | None = None) -> float:
    """Returns the mean structural similarity, at most 1, of images [H, W, K] from 0 to 1, padded with zeros."""

    def similarity(rows: slice) -> Array:
        # Windows reach beyond these rows; outside the image there are zeros.
        first = max(rows.start - _RADIUS, 0)
        seen = slice(first, rows.stop + _RADIUS)
        found = _similarity(np.asarray(picture[seen], np.float64), np.asarray(target_image[seen], np.float64))
        return found[rows.start - first :][: rows.stop - rows.start]

    return _mean(similarity, len(picture), mask)


def _similarity(x: Array, y: Array) -> Array:
    """Returns the structural similarity [H, W] of images [H, W, K], averaged over channels."""
    mean_x, mean_y = _blurred(x), _blurred(y)
    variances = _blurred(x * x) - mean_x**2 + _blurred(y * y) - mean_y**2
    covariance = _blurred(x * y) - mean_x * mean_y
    numerator = (2 * mean_x * mean_y + _C1) * (2 * covariance + _C2)
    return np.asarray((numerator / ((mean_x**2 + mean_y**2 + _C1) * (variances + _C2))).mean(axis=-1))


def _mean(values: Callable[[slice], Array], height: int, mask: Array | None) -> float:
    """Returns the mean of values [rows, W] over an image, weighted by its mask unless that is 0 everywhere."""
    mask = mask if mask is not None and mask.any() else None
    total = weight = 0.0
    for rows in _bands(height):
        found = values(rows)
        weights = np.ones(found.shape) if mask is None else mask[rows].astype(np.float64)
        total, weight = total + float((found * weights).sum()), weight + float(weights.sum())
    return total / weight


def _bands(height: int) -> Iterator[slice]:
    """Yields the rows of an image in bands, so that float64 values take little memory."""
    return (slice(first, min(first + _BAND_ROWS, height)) for first in range(0, height, _BAND_ROWS))


def matched(picture: Array, target_image: Array, mask: Array | None = None) -> Array:
    """Returns the image [H, W, K], from 0 to 1, after the affine map of its colours that best matches the target image.

    This removes the effect of unknown automatic exposures on the scores of photographs that were not fitted.
    """
    return exposed(color_map(picture, target_image, mask), picture).clip(0, 1)


def color_map(picture: Array, target_image: Array, mask: Array | None = None) -> Array:
    """Returns the affine map [K, K + 1] of the image's colours that best matches the target image, by least squares."""
    channels = picture.shape[-1]
    squares, products = np.zeros((channels + 1, channels + 1)), np.zeros((channels + 1, channels))
    for rows in _bands(len(picture)):
        colors = np.asarray(picture[rows].reshape(-1, channels), np.float64)
        colors = np.concatenate([colors, np.ones((len(colors), 1))], axis=1)
        weighted = colors if mask is None else colors * (mask[rows].reshape(-1, 1) / 255.0)
        squares += weighted.T @ colors
        products += weighted.T @ target_image[rows].reshape(-1, channels)
    solution, *_ = np.linalg.lstsq(squares, products, rcond=None)
    return np.asarray(solution.T)


def exposed(matrix: Array, picture: Array) -> Array:
    """Applies an affine map [K, K + 1] to the colours of an image [H, W, K]."""
    known = np.asarray(matrix, np.float32)
    return np.asarray(np.asarray(picture, np.float32) @ known[:, :-1].T + known[:, -1])


def _blurred(image: Array) -> Array:
    """Returns the means [H, W, K] over SSIM's window around each pixel, padded with zeros."""
    ndimage = require("scipy.ndimage", "fit", "measuring SSIM")
    means: Array = ndimage.gaussian_filter(image, _SIGMA, mode="constant", radius=_RADIUS, axes=(0, 1))
    return means


@dataclass(frozen=True)
class PhotographScore:
    """The scores of a rendering of one photograph.

    Attributes:
        name: the name of the photograph.
        psnr: PSNR, dB.
        ssim: SSIM, at most 1.
        exposed_psnr: PSNR with the exposure of the neighbouring photographs, if known, dB.
        matched_psnr: PSNR after the affine map of the rendering's colours that best matches the photograph, dB.
        opaque_psnr: PSNR of the photograph's opaque part, where trainings compare colours, dB.
    """

    name: str
    psnr: float
    ssim: float
    exposed_psnr: float
    matched_psnr: float
    opaque_psnr: float

    @staticmethod
    def of(name: str, rendered: Array, photograph: Photograph, exposure: Array | None = None) -> PhotographScore:
        """Scores a rendering [H, W, 3] of a photograph with the given `exposure` [3, 4]; None: unknown."""
        colors, mask = photograph.colors, photograph.mask
        found = rendered if exposure is None else exposed(exposure, rendered).clip(0, 1)
        whole = psnr(rendered, colors, mask)
        return PhotographScore(
            name,
            whole,
            ssim(rendered, colors, mask),
            psnr(found, colors, mask),
            psnr(matched(rendered, colors, mask), colors, mask),
            whole if photograph.opacity is None else psnr(rendered, colors, photograph.target_image.mask),
        )


@dataclass(frozen=True)
class Scores:
    """Means over photographs of the attributes of `PhotographScore`. Older checkpoints lack `opaque_psnr`."""

    psnr: float
    ssim: float
    exposed_psnr: float
    matched_psnr: float
    opaque_psnr: float | None = None

    @staticmethod
    def of(scores: Iterable[PhotographScore]) -> Scores:
        """Returns the means of at least one score."""
        names = [field.name for field in fields(Scores)]
        rows = [[getattr(each, name) for name in names] for each in scores]
        return Scores(*(float(value) for value in np.mean(rows, axis=0)))

    def __str__(self) -> str:
        return f"{self.psnr:.2f} dB, SSIM {self.ssim:.3f}"


def scored(rendered: Iterable[Array], shots: Sequence[Shot]) -> Scores:
    """Scores renderings [H, W, 3] of the shots, one at a time."""
    return Scores.of(
        PhotographScore.of(shot.name, picture, shot.read()) for picture, shot in zip(rendered, shots, strict=True)
    )


def pictures(
    client: Client, scene: Scene | SceneHandle, shots: Sequence[Shot], looks: Mapping[str, Any]
) -> Iterator[Array]:
    """Renders the shots one by one, [H, W, 3] from 0 to 1; a scene that is not a handle is stored meanwhile.

    `looks` are settings, see `Recipe.looks`; flat Gaussians are rendered as surfels.
    """
    known = scene.scene if isinstance(scene, SceneHandle) else scene
    settings = dict(looks)
    if isinstance(known, Gaussians) and known.is_flat:
        settings["primitive"] = "surfel"
    with nullcontext(scene) if isinstance(scene, SceneHandle) else stored(client, scene) as handle:
        for shot in shots:
            yield client.render(handle, shot.camera, **settings).color.clip(0, 1)


def exposures_nearby(
    client: Client,
    scene: Scene,
    shots: Sequence[Shot],
    fitted: Sequence[Shot],
    looks: Mapping[str, Any],
) -> Array | None:
    """Returns exposures of shots that were not fitted, interpolated from the neighbouring photographs.

    Assumes that names follow the order of capture and that the exposure changes slowly. The exposure of a fitted
    photograph is the affine map of its rendering's colours that best matches it. The exposure of a shot is interpolated
    between its two neighbours by name; its own photograph is not used.

    Returns:
        Exposures [N, 3, 4] of the shots; None if nothing was fitted.
    """
    order = sorted({shot.name for shot in [*shots, *fitted]})
    places = {name: place for place, name in enumerate(order)}
    known, wanted = np.array(sorted(places[shot.name] for shot in fitted)), [places[shot.name] for shot in shots]
    if not len(known):
        return None
    after = np.searchsorted(known, wanted)
    needed = {int(known[min(max(index, 0), len(known) - 1)]) for index in [*after, *(after - 1)]}
    near = sorted((shot for shot in fitted if places[shot.name] in needed), key=lambda shot: shot.name)
    rendered = pictures(client, scene, near, looks)
    maps = [_map_of(picture, shot) for picture, shot in zip(rendered, near, strict=True)]
    columns = np.stack(maps).reshape(len(near), -1).T
    between = [np.interp(wanted, [places[shot.name] for shot in near], column) for column in columns]
    return np.stack(between, axis=1).reshape(len(shots), *maps[0].shape)


def _map_of(picture: Array, shot: Shot) -> Array:
    photograph = shot.read()
    return color_map(picture, photograph.colors, photograph.mask)


def side_by_side(columns: Sequence[Sequence[Array]]) -> Array:
    """Returns a grid of images, [H, W, 3], padded with black."""
    rows = [np.concatenate(row, axis=1) for row in zip(*columns, strict=True)]
    width = max(row.shape[1] for row in rows)
    return np.concatenate([np.pad(row, ((0, 0), (0, width - row.shape[1]), (0, 0))) for row in rows])


def samples(shots: Sequence[Shot], count: int) -> list[int]:
    """Returns the indices of `count` evenly spaced shots."""
    spread = np.linspace(0, len(shots) - 1, count + 2)[1:-1].round().astype(int)
    return list(dict.fromkeys(int(index) for index in spread))
