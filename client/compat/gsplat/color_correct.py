"""gsplat's corrections of colours before images are compared (`gsplat.color_correct`) in plain torch."""

from __future__ import annotations

import torch

from lumigrad.client.base.arrays import check_shape
from lumigrad.client.compat.gsplat.options import gsplat_refusals

# Least variance, and least slope, of a fit.
_LEAST = 1e-8


def color_correct_quadratic(
    img: torch.Tensor, ref: torch.Tensor, num_iters: int = 5, eps: float = 0.5 / 255
) -> torch.Tensor:
    """Maps the colours of an image to those of a reference by the quadratic polynomials that fit best.

    The method is that of RawNeRF's and mip-NeRF 360's evaluations. Colours within `eps` of 0 or 1 in the image, the
    reference or the result of the last fit are ignored.

    Args:
        img: [.., C] colours in [0, 1].
        ref: [.., C] the reference.
        num_iters: how often to fit.
        eps: colours closer than this to 0 or 1 count as clipped.

    Returns:
        [.., C] corrected colours in [0, 1].

    Raises:
        GsplatArgumentError: the shapes differ.
    """
    found, wanted = _pixels(img, ref)
    clipped = _clipped(found, eps) | _clipped(wanted, eps)
    channels = found.shape[1]
    rows, columns = torch.triu_indices(channels, channels)
    for _ in range(num_iters):
        terms = torch.cat([found[:, rows] * found[:, columns], found, torch.ones_like(found[:, :1])], -1)
        unused = clipped | _clipped(found, eps)
        fits = []
        for channel in range(channels):
            used = ~unused[:, channel, None]
            fits.append(torch.linalg.lstsq(terms * used, wanted[:, channel, None] * used).solution)
        found = (terms @ torch.cat(fits, -1)).clamp(0, 1)
    return found.reshape(img.shape)


def color_correct_affine(img: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
    """Maps the colours of an image to those of a reference by an affine map of each channel.

    It is the inverse of the affine map that fits the reference to the image best.

    Args:
        img: [.., C] colours in [0, 1].
        ref: [.., C] the reference.

    Returns:
        [.., C] corrected colours in [0, 1].

    Raises:
        GsplatArgumentError: the shapes differ.
    """
    found, wanted = _pixels(img, ref)
    mean, center = found.mean(0), wanted.mean(0)
    variances = (wanted - center).square().mean(0).clamp_min(_LEAST)
    slopes = ((wanted - center) * (found - mean)).mean(0) / variances
    slopes = torch.where(slopes.abs() < _LEAST, 1, slopes)
    return ((found - mean) / slopes + center).clamp(0, 1).reshape(img.shape)


def _pixels(img: torch.Tensor, ref: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    with gsplat_refusals():
        check_shape("ref", ref.shape, img.shape)
    return img.reshape(-1, img.shape[-1]), ref.reshape(-1, img.shape[-1])


def _clipped(values: torch.Tensor, eps: float) -> torch.Tensor:
    return (values < eps) | (values > 1 - eps)
