"""gsplat's functions of covariances in plain torch: from shapes, to cameras, to pictures."""

from __future__ import annotations

import torch

from lumigrad.client.base.arguments import one_of
from lumigrad.client.base.arrays import check_shape
from lumigrad.client.compat.gsplat.options import gsplat_refusals
from lumigrad.client.compat.gsplat.projection import CAMERAS, Film, rotations
from lumigrad.client.torch.remote import full_precision


@full_precision
def quat_scale_to_covar_preci(
    quats: torch.Tensor,
    scales: torch.Tensor,
    compute_covar: bool = True,
    compute_preci: bool = True,
    triu: bool = False,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Returns covariances, and their inverses, of Gaussians.

    Args:
        quats: [.., 4] rotations (w, x, y, z), of any length.
        scales: [.., 3] standard deviations.
        compute_covar: False: None in place of the covariances.
        compute_preci: False: None in place of the inverses.
        triu: return the upper triangles [.., 6] (xx, xy, xz, yy, yz, zz), not [.., 3, 3].

    Raises:
        GsplatArgumentError: a shape is invalid.

    Example:
        covars, _ = quat_scale_to_covar_preci(quats, scales, compute_preci=False)
    """
    with gsplat_refusals():
        check_shape("quats", quats.shape, (..., 4))
        check_shape("scales", scales.shape, (*quats.shape[:-1], 3))
    turns = rotations(quats)

    def squared(factors: torch.Tensor) -> torch.Tensor:
        root = turns * factors[..., None, :]
        matrices = root @ root.mT
        rows, columns = torch.triu_indices(3, 3)
        return matrices[..., rows, columns] if triu else matrices

    return squared(scales) if compute_covar else None, squared(1 / scales) if compute_preci else None


@full_precision
def world_to_cam(
    means: torch.Tensor, covars: torch.Tensor, viewmats: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns centres [.., C, N, 3] and covariances [.., C, N, 3, 3] in the frames of cameras.

    Args:
        means: [.., N, 3] centres.
        covars: [.., N, 3, 3] covariances.
        viewmats: [.., C, 4, 4] world to camera.

    Raises:
        GsplatArgumentError: a shape is invalid.

    Example:
        means_c, covars_c = world_to_cam(means, covars, viewmats)
    """
    with gsplat_refusals():
        check_shape("means", means.shape, (..., "N", 3))
        check_shape("covars", covars.shape, (*means.shape, 3))
        check_shape("viewmats", viewmats.shape, (*means.shape[:-2], "C", 4, 4))
    turns = viewmats[..., :, None, :3, :3]
    moved = (turns @ means[..., None, :, :, None])[..., 0] + viewmats[..., :, None, :3, 3]
    return moved, turns @ covars[..., None, :, :, :] @ turns.mT


@full_precision
def proj(
    means: torch.Tensor,
    covars: torch.Tensor,
    Ks: torch.Tensor,
    width: int,
    height: int,
    camera_model: str = "pinhole",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns centres [.., C, N, 2], pixels, and covariances [.., C, N, 2, 2] in pictures; nothing is culled.

    Args:
        means: [.., C, N, 3] centres in the frames of cameras.
        covars: [.., C, N, 3, 3] covariances there.
        Ks: [.., C, 3, 3] intrinsics, pixels.
        width: picture width, pixels.
        height: picture height, pixels.
        camera_model: "pinhole", "ortho" or "fisheye".

    Raises:
        GsplatArgumentError: a shape or the model is invalid.

    Example:
        means2d, covars2d = proj(*world_to_cam(means, covars, viewmats), Ks, 300, 200)
    """
    with gsplat_refusals():
        one_of("camera_model", camera_model, ("pinhole", "ortho", "fisheye"))
        check_shape("means", means.shape, (..., "C", "N", 3))
        check_shape("covars", covars.shape, (*means.shape, 3))
        check_shape("Ks", Ks.shape, (*means.shape[:-2], 3, 3))
    film = Film(width, height, 0, 0, 0, 0, camera_model, False)
    x, y, z = means.unbind(-1)
    pixels, rows = CAMERAS[camera_model](x, y, z, Ks.to(means.dtype)[..., None], film)
    # Entries that are always 0 are numbers.
    entries = [[entry if isinstance(entry, torch.Tensor) else torch.zeros_like(z) for entry in row] for row in rows]
    slopes = torch.stack([torch.stack(row, -1) for row in entries], -2)
    return torch.stack(pixels, -1), slopes @ covars @ slopes.mT
