"""The loss of a picture against a photograph, with its gradient, computed in this process."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lumigrad.client.fitting.similarity import C1, C2, blurred, psnr
from lumigrad.client.named_arrays import Array


@dataclass(frozen=True, eq=False)
class PictureLoss:
    """`l1` times the mean of |picture - photograph| plus `dssim` times the mean of 1 - SSIM.

    Attributes:
        value: the weighted sum.
        terms: "l1", "dssim" and "psnr", decibels.
        gradient: [H, W, 3] float32, by the picture.
    """

    value: float
    terms: dict[str, float]
    gradient: Array

    @staticmethod
    def of(picture: Array, photograph: Array, mask: Array | None, l1: float, dssim: float) -> PictureLoss:
        """Compares pictures [H, W, 3] with values from 0 to 1; `mask` [H, W] uint8 weighs the pixels."""
        share = np.ones(picture.shape[:2]) if mask is None else mask / 255.0
        weights = (share / max(share.sum() * picture.shape[2], 1e-12))[..., None]
        difference = picture.astype(np.float64) - photograph
        similarity, slope = _similarity(picture.astype(np.float64), photograph.astype(np.float64), weights)
        terms = {
            "l1": float((weights * np.abs(difference)).sum()),
            "dssim": float((weights * (1 - similarity)).sum()),
            "psnr": psnr(picture, photograph, mask),
        }
        gradient = l1 * weights * np.sign(difference) - dssim * slope
        return PictureLoss(l1 * terms["l1"] + dssim * terms["dssim"], terms, gradient.astype(np.float32))


def _similarity(x: Array, y: Array, weights: Array) -> tuple[Array, Array]:
    """[H, W, 3] SSIM of each pixel's window (Wang et al. 2004), and the gradient of its weighted sum by `x`."""
    mean_x, mean_y = blurred(x), blurred(y)
    variance_x, variance_y = blurred(x * x) - mean_x**2, blurred(y * y) - mean_y**2
    covariance = blurred(x * y) - mean_x * mean_y
    luminance, contrast = 2 * mean_x * mean_y + C1, 2 * covariance + C2
    luminances, contrasts = mean_x**2 + mean_y**2 + C1, variance_x + variance_y + C2
    similarity = luminance * contrast / (luminances * contrasts)
    # By the window's mean, its covariance, and its variance; the window is symmetric, so that blurring is its own
    # transpose.
    by_covariance = weights * 2 * luminance / (luminances * contrasts)
    by_variance = -weights * similarity / contrasts
    by_mean = weights * 2 * (mean_y * contrast / (luminances * contrasts) - mean_x * similarity / luminances)
    by_mean -= by_covariance * mean_y + 2 * by_variance * mean_x
    return similarity, blurred(by_mean) + blurred(by_covariance) * y + 2 * blurred(by_variance) * x
