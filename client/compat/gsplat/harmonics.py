"""gsplat's `spherical_harmonics` in plain torch, and the colours and extra signals of Gaussians that follow from them.

The basis is that of Kerbl et al., "3D Gaussian splatting for real-time radiance field rendering", 2023.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeGuard

import torch

from lumigrad.client.base.arguments import whole_number
from lumigrad.client.base.arrays import check_shape
from lumigrad.client.compat.gsplat.options import GsplatArgumentError, gsplat_refusals
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.operators.gaussians import used_coefficients
from lumigrad.client.values.quaternions import harmonics

_LARGEST_DEGREE = 4


def spherical_harmonics(
    degrees_to_use: int,
    means: torch.Tensor,
    viewmats: torch.Tensor,
    coeffs: torch.Tensor,
    masks: torch.Tensor | None = None,
    batch_ids: torch.Tensor | None = None,
    camera_ids: torch.Tensor | None = None,
    gaussian_ids: torch.Tensor | None = None,
    viewmats_rs: torch.Tensor | None = None,
) -> torch.Tensor:
    """Evaluates spherical harmonics in the directions from cameras to Gaussians; no worker is called.

    Colours are these values plus 0.5, and at least 0. Gradients reach the coefficients, the means and both poses.

    Args:
        degrees_to_use: degree in use, 0 to 4, whose (degree + 1)^2 coefficients `coeffs` has.
        means: [.., N, 3] centres; float32 or float64, as the coefficients.
        viewmats: [.., C, 4, 4] world to camera, rigid.
        coeffs: [N, K, D], unlike the original's also [.., N, K, D] and [.., C, N, K, D]; with gaussian_ids [nnz, K, D],
            a row for each.
        masks: bool [.., C, N] or [nnz]; values are 0 where it is False. None: all are evaluated.
        batch_ids: int64 [nnz] scenes of packed results; None: a single scene.
        camera_ids: int64 [nnz] their cameras.
        gaussian_ids: int64 [nnz] their Gaussians; None: results for all.
        viewmats_rs: [.., C, 4, 4] poses at the end of the exposure; directions are then from the mean of both centres.

    Returns:
        [.., C, N, D], or [nnz, D].

    Raises:
        GsplatArgumentError: an argument is invalid.

    Example:
        colors = (spherical_harmonics(3, means, viewmats, sh) + 0.5).clamp_min(0)
    """
    with gsplat_refusals():
        degree = whole_number("degrees_to_use", degrees_to_use, 0, _LARGEST_DEGREE)
        check_shape("means", means.shape, (..., "N", 3))
        check_shape("viewmats", viewmats.shape, (*means.shape[:-2], "C", 4, 4))
        count = means.shape[-2] if gaussian_ids is None else len(gaussian_ids)
        check_shape("coeffs", coeffs.shape, (..., count, "K", "D"))
        used = (degree + 1) ** 2
        if coeffs.shape[-2] < used:
            text = f"expected at least {used} coefficients for the degree {degree}, got shape {list(coeffs.shape)}"
            raise GsplatArgumentError.of("coeffs", text)
    eyes = _eyes(viewmats)
    if viewmats_rs is not None:
        eyes = 0.5 * (eyes + _eyes(viewmats_rs))
    eyes = eyes.to(means.dtype)
    if gaussian_ids is None:
        offsets = means[..., None, :, :] - eyes[..., :, None, :]
        is_for_all = coeffs.ndim == 3 or has_harmonics_per_camera(coeffs, means)
        coeffs = coeffs if is_for_all else coeffs[..., None, :, :, :]
    else:
        if camera_ids is None:
            raise GsplatArgumentError.of("camera_ids", "expected indices beside gaussian_ids, got None")
        scenes = torch.zeros_like(gaussian_ids) if batch_ids is None else batch_ids
        means, eyes = (values.reshape(math.prod(values.shape[:-2]), *values.shape[-2:]) for values in (means, eyes))
        offsets = means[scenes, gaussian_ids] - eyes[scenes, camera_ids]
    basis = torch.stack(harmonics(degree, *torch.nn.functional.normalize(offsets, dim=-1).unbind(-1)), -1)
    # Elementwise sums: batches of such small products are slow.
    values = (basis[..., None] * coeffs[..., :used, :]).sum(-2)
    return values if masks is None else torch.where(masks[..., None], values, 0.0)


def spherical_harmonics_l0(sh0: torch.Tensor) -> torch.Tensor:
    """Returns the constant part [N, D] of harmonics with the coefficients [N, 1, D]."""
    with gsplat_refusals():
        check_shape("sh0", sh0.shape, ("N", 1, "D"))
    constant: float = harmonics(0, 0.0, 0.0, 1.0)[0]
    return sh0[:, 0] * constant


def spherical_harmonics_l1_plus(
    degrees_to_use: int,
    means: torch.Tensor,
    viewmats: torch.Tensor,
    shN: torch.Tensor,
    masks: torch.Tensor | None = None,
    batch_ids: torch.Tensor | None = None,
    camera_ids: torch.Tensor | None = None,
    gaussian_ids: torch.Tensor | None = None,
    viewmats_rs: torch.Tensor | None = None,
) -> torch.Tensor:
    """Evaluates all harmonics but the constant one, from the coefficients `shN` [N, K - 1, D].

    Adding `spherical_harmonics_l0` gives the values of `spherical_harmonics`, which describes the other arguments.
    """
    coeffs = torch.nn.functional.pad(shN, (0, 0, 1, 0))
    return spherical_harmonics(
        degrees_to_use, means, viewmats, coeffs, masks, batch_ids, camera_ids, gaussian_ids, viewmats_rs
    )


def _eyes(viewmats: torch.Tensor) -> torch.Tensor:
    """Returns the centres [.., 3] of cameras, whose rotations are assumed to be orthonormal."""
    return -(viewmats[..., :3, :3] * viewmats[..., :3, 3, None]).sum(-2)


def has_harmonics_per_camera(harmonics: Any, means: Any) -> TypeGuard[torch.Tensor]:
    """Whether coefficients have an axis of cameras."""
    both = isinstance(harmonics, torch.Tensor) and isinstance(means, torch.Tensor)
    return both and harmonics.ndim == means.ndim + 2


def colors_per_camera(
    coefficients: torch.Tensor, sh_degree: int, means: torch.Tensor, viewmats: Any, viewmats_rs: Any = None
) -> torch.Tensor:
    """Returns the colours [.., C, N, D] of coefficients [.., C, N, K, D] that differ between cameras.

    They are evaluated here, because workers have one set of coefficients for all cameras of a scene.
    """
    batch, count = means.shape[:-2], means.shape[-2]
    views = {"viewmats": viewmats} | ({} if viewmats_rs is None else {"viewmats_rs": viewmats_rs})
    with gsplat_refusals():
        for name, poses in views.items():
            if not isinstance(poses, torch.Tensor):
                raise InvalidArgument.of(name, f"expected a tensor, got {type(poses).__name__}")
            check_shape(name, poses.shape, (*batch, "C", 4, 4))
        check_shape("colors", coefficients.shape, (*batch, viewmats.shape[-3], count, "K", "D"))
        used_coefficients(sh_degree, coefficients.shape[-2])
    start, end = viewmats.to(means.device), None if viewmats_rs is None else viewmats_rs.to(means.device)
    coefficients = coefficients.to(means.device)
    return (spherical_harmonics(sh_degree, means, start, coefficients, viewmats_rs=end) + 0.5).clamp_min(0)


def with_signals(
    colors: torch.Tensor | None,
    sh_degree: int | None,
    signals: torch.Tensor,
    signals_degree: int | None,
    means: torch.Tensor,
    viewmats: Sequence[torch.Tensor | None],
) -> torch.Tensor:
    """Returns the channels [.., N, D + E], or [.., C, N, D + E] per camera, of colours and extra signals.

    Harmonics are evaluated here; those of colours are clamped at 0, those of signals are not.

    Args:
        colors: [.., N, D], [.., C, N, D] or, with a degree, [.., N, K, D]; None: D is 0.
        sh_degree: degree of the colours; None: they are channels.
        signals: [.., N, E], [.., C, N, E] or, with a degree, [.., N, K, E].
        signals_degree: degree of the signals; None: they are channels.
        means: [.., N, 3].
        viewmats: [.., C, 4, 4] poses, and those at the end of the exposure or None.
    """
    views, ends = viewmats
    assert views is not None
    batch, count, cameras = means.shape[:-2], means.shape[-2], views.shape[-3]
    if signals_degree is None:
        per_camera = signals.ndim == len(batch) + 3
        check_shape("extra_signals", signals.shape, (*batch, *((cameras,) if per_camera else ()), count, "E"))
    else:
        whole_number("extra_signals_sh_degree", signals_degree, 0, _LARGEST_DEGREE)
        shared = signals.ndim == 3
        check_shape("extra_signals", signals.shape, (*(() if shared else batch), count, "K", "E"))
        used = (signals_degree + 1) ** 2
        if signals.shape[-2] < used:
            text = f"expected at least {used} coefficients, got shape {list(signals.shape)}"
            raise GsplatArgumentError.of("extra_signals", f"{text}; lower extra_signals_sh_degree")
        signals = spherical_harmonics(signals_degree, means, views, signals, viewmats_rs=ends) + 0.5
    if colors is None:
        return signals
    if sh_degree is not None:
        colors = (spherical_harmonics(sh_degree, means, views, colors, viewmats_rs=ends) + 0.5).clamp_min(0)
    if colors.ndim != signals.ndim:
        shape = (*batch, cameras, count, -1)
        colors, signals = (
            each if each.ndim == len(shape) else each[..., None, :, :].expand(shape) for each in (colors, signals)
        )
    return torch.cat([colors, signals.to(colors.device, colors.dtype)], -1)
