"""How alike two pictures are: PSNR and SSIM, in double precision."""

from __future__ import annotations

import numpy as np

from lumigrad.client.extras import require
from lumigrad.client.named_arrays import Array

# Of the Gaussian window of SSIM, pixels: 11x11.
_RADIUS, _SIGMA = 5, 1.5
# Wang et al., "Image Quality Assessment: From Error Visibility to Structural Similarity" (2004), for values 0 to 1.
_C1, _C2 = 0.01**2, 0.03**2
# Of a PSNR: two pictures that are equal have 120 dB.
_LEAST_ERROR = 1e-12


def psnr(picture: Array, target: Array, mask: Array | None = None) -> float:
    """Decibels; the pictures [H, W, K] have values from 0 to 1, the mask [H, W] weighs their pixels."""
    squares = np.square(np.asarray(picture, np.float64) - target).mean(axis=-1)
    return float(-10 * np.log10(max(float(np.average(squares, weights=_weights(mask))), _LEAST_ERROR)))


def ssim(picture: Array, target: Array, mask: Array | None = None) -> float:
    """Mean structural similarity, at most 1, of pictures [H, W, K] with values from 0 to 1; zeros surround them."""
    x, y = np.asarray(picture, np.float64), np.asarray(target, np.float64)
    mean_x, mean_y = _blurred(x), _blurred(y)
    variances = _blurred(x * x) - mean_x**2 + _blurred(y * y) - mean_y**2
    covariance = _blurred(x * y) - mean_x * mean_y
    numerator = (2 * mean_x * mean_y + _C1) * (2 * covariance + _C2)
    similarity = numerator / ((mean_x**2 + mean_y**2 + _C1) * (variances + _C2))
    return float(np.average(similarity.mean(axis=-1), weights=_weights(mask)))


def matched(picture: Array, target: Array, mask: Array | None = None) -> Array:
    """The picture [H, W, K] after the affine map of its colours that comes closest to the target, from 0 to 1.

    What an automatic exposure did to a photograph nobody fitted is not known; this is the score without it.
    """
    return exposed(color_map(picture, target, mask), picture).clip(0, 1)


def color_map(picture: Array, target: Array, mask: Array | None = None) -> Array:
    """[K, K + 1] the affine map of the picture's colours that comes closest to the target, in least squares."""
    channels = picture.shape[-1]
    colors = np.concatenate([picture.reshape(-1, channels), np.ones((picture[..., 0].size, 1))], axis=1)
    root = np.ones((len(colors), 1)) if mask is None else np.sqrt(mask.reshape(-1, 1) / 255.0)
    solution, *_ = np.linalg.lstsq(colors * root, target.reshape(-1, channels) * root, rcond=None)
    return np.asarray(solution.T)


def exposed(matrix: Array, picture: Array) -> Array:
    """[H, W, K] the affine map [K, K + 1] of the picture's colours."""
    return np.asarray(picture @ matrix[:, :-1].T + matrix[:, -1], np.float32)


def _blurred(image: Array) -> Array:
    """[H, W, K] means over SSIM's window around each pixel; zeros surround the picture."""
    ndimage = require("scipy.ndimage", "fit", "measuring SSIM")
    means: Array = ndimage.gaussian_filter(image, _SIGMA, mode="constant", radius=_RADIUS, axes=(0, 1))
    return means


def _weights(mask: Array | None) -> Array | None:
    return mask if mask is not None and mask.any() else None
