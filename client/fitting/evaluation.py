"""Scores of a fit: PSNR and SSIM on held-out photographs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lumigrad.client.base.arrays import Array
from lumigrad.client.base.extras import require
from lumigrad.client.client import Client
from lumigrad.client.fitting.background import Color
from lumigrad.client.fitting.beginning import Shot
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.handle import Scene, SceneHandle

# The radius of SSIM's Gaussian window, pixels: 11x11.
_RADIUS, _SIGMA = 5, 1.5
# Wang et al., "Image Quality Assessment: From Error Visibility to Structural Similarity" (2004), for values 0 to 1.
_C1, _C2 = 0.01**2, 0.03**2
# Limits the PSNR: equal images have 120 dB.
_LEAST_ERROR = 1e-12


def psnr(picture: Array, target_image: Array, mask: Array | None = None) -> float:
    """PSNR in dB of images [H, W, K] with values from 0 to 1; the mask [H, W] weights their pixels."""
    squares = np.square(np.asarray(picture, np.float64) - target_image).mean(axis=-1)
    return float(-10 * np.log10(max(float(np.average(squares, weights=_weights(mask))), _LEAST_ERROR)))


def ssim(picture: Array, target_image: Array, mask: Array | None = None) -> float:
    """Mean structural similarity, at most 1, of images [H, W, K] with values from 0 to 1, padded with zeros."""
    x, y = np.asarray(picture, np.float64), np.asarray(target_image, np.float64)
    mean_x, mean_y = _blurred(x), _blurred(y)
    variances = _blurred(x * x) - mean_x**2 + _blurred(y * y) - mean_y**2
    covariance = _blurred(x * y) - mean_x * mean_y
    numerator = (2 * mean_x * mean_y + _C1) * (2 * covariance + _C2)
    similarity = numerator / ((mean_x**2 + mean_y**2 + _C1) * (variances + _C2))
    return float(np.average(similarity.mean(axis=-1), weights=_weights(mask)))


def matched(picture: Array, target_image: Array, mask: Array | None = None) -> Array:
    """The image [H, W, K] after the affine map of its colours that best matches the target image, from 0 to 1.

    Removes the unknown automatic exposure of photographs that were not fitted from their score.
    """
    return exposed(color_map(picture, target_image, mask), picture).clip(0, 1)


def color_map(picture: Array, target_image: Array, mask: Array | None = None) -> Array:
    """[K, K + 1] the affine map of the image's colours that best matches the target image, by least squares."""
    channels = picture.shape[-1]
    colors = np.concatenate([picture.reshape(-1, channels), np.ones((picture[..., 0].size, 1))], axis=1)
    root = np.ones((len(colors), 1)) if mask is None else np.sqrt(mask.reshape(-1, 1) / 255.0)
    solution, *_ = np.linalg.lstsq(colors * root, target_image.reshape(-1, channels) * root, rcond=None)
    return np.asarray(solution.T)


def exposed(matrix: Array, picture: Array) -> Array:
    """[H, W, K] the image's colours after an affine map [K, K + 1]."""
    return np.asarray(picture @ matrix[:, :-1].T + matrix[:, -1], np.float32)


def _blurred(image: Array) -> Array:
    """[H, W, K] means over SSIM's window around each pixel, padded with zeros."""
    ndimage = require("scipy.ndimage", "fit", "measuring SSIM")
    means: Array = ndimage.gaussian_filter(image, _SIGMA, mode="constant", radius=_RADIUS, axes=(0, 1))
    return means


def _weights(mask: Array | None) -> Array | None:
    return mask if mask is not None and mask.any() else None


@dataclass(frozen=True)
class Scores:
    """Means over photographs.

    Attributes:
        psnr: decibels.
        ssim: at most 1.
        exposed_psnr: decibels, for renderings with the neighbouring photographs' exposures, if known.
        matched_psnr: decibels, after the affine map of the rendering's colours that best matches each photograph.
    """

    psnr: float
    ssim: float
    exposed_psnr: float
    matched_psnr: float

    @staticmethod
    def of(rendered: Sequence[Array], shots: Sequence[Shot], exposures: Array | None = None) -> Scores:
        """Scores renderings [H, W, 3] of the shots; `exposures` [N, 3, 4] are the shots', None: unknown."""
        maps = [None] * len(shots) if exposures is None else list(exposures)
        rows = [_row(*each) for each in zip(rendered, shots, maps, strict=True)]
        return Scores(*(float(value) for value in np.mean(rows, axis=0)))

    def __str__(self) -> str:
        return f"{self.psnr:.2f} dB, SSIM {self.ssim:.3f}"


def _row(picture: Array, shot: Shot, exposure: Array | None) -> tuple[float, ...]:
    photograph, mask = shot.photograph, shot.mask
    found = picture if exposure is None else exposed(exposure, picture).clip(0, 1)
    return (
        psnr(picture, photograph, mask),
        ssim(picture, photograph, mask),
        psnr(found, photograph, mask),
        psnr(matched(picture, photograph, mask), photograph, mask),
    )


def pictures(
    client: Client, scene: Scene | SceneHandle, shots: Sequence[Shot], background: Color | None = None
) -> list[Array]:
    """Renders each shot, [H, W, 3] from 0 to 1; a scene that is not stored is uploaded once. Flat ones are surfels."""
    handle = scene if isinstance(scene, SceneHandle) else client.put(scene)
    known = handle.scene if isinstance(scene, SceneHandle) else scene
    settings: dict[str, Any] = {"background": background}
    if isinstance(known, Gaussians) and known.is_flat:
        settings["primitive"] = "surfel"
    try:
        return [client.render(handle, shot.camera, **settings).color.clip(0, 1) for shot in shots]
    finally:
        if handle is not scene:
            client.delete(handle)


def exposures_nearby(
    client: Client,
    scene: Scene,
    shots: Sequence[Shot],
    fitted: Sequence[Shot],
    background: Color | None = None,
) -> Array | None:
    """Exposures of shots that were not fitted, interpolated from the neighbouring photographs.

    Assumes that names follow the order of capture and that the exposure changes slowly. Each fitted photograph has
    the affine map of its rendering's colours that best matches it; a shot gets the interpolation between its two
    neighbours by name. Its own photograph is not used.

    Returns:
        [N, 3, 4] of the shots; None: nothing was fitted.
    """
    order = sorted({shot.name for shot in [*shots, *fitted]})
    places = {name: place for place, name in enumerate(order)}
    known, wanted = np.array(sorted(places[shot.name] for shot in fitted)), [places[shot.name] for shot in shots]
    if not len(known):
        return None
    after = np.searchsorted(known, wanted)
    needed = {int(known[min(max(index, 0), len(known) - 1)]) for index in [*after, *(after - 1)]}
    near = sorted((shot for shot in fitted if places[shot.name] in needed), key=lambda shot: shot.name)
    rendered = pictures(client, scene, near, background)
    maps = [color_map(picture, shot.photograph, shot.mask) for picture, shot in zip(rendered, near, strict=True)]
    columns = np.stack(maps).reshape(len(near), -1).T
    between = [np.interp(wanted, [places[shot.name] for shot in near], column) for column in columns]
    return np.stack(between, axis=1).reshape(len(shots), *maps[0].shape)


def side_by_side(columns: Sequence[Sequence[Array]]) -> Array:
    """[H, W, 3] a grid of images, padded with black."""
    rows = [np.concatenate(row, axis=1) for row in zip(*columns, strict=True)]
    width = max(row.shape[1] for row in rows)
    return np.concatenate([np.pad(row, ((0, 0), (0, width - row.shape[1]), (0, 0))) for row in rows])


def samples(shots: Sequence[Shot], count: int) -> list[int]:
    """Indices of `count` shots, spread evenly."""
    spread = np.linspace(0, len(shots) - 1, count + 2)[1:-1].round().astype(int)
    return list(dict.fromkeys(int(index) for index in spread))
