"""Renders that differ only in the poses of their cameras: prepared once, and then drawn without Python."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lumigrad.kernels import _native
from lumigrad.kernels.gaussians.camera import Camera
from lumigrad.kernels.gaussians.camera_sources import OpenCVSource
from lumigrad.kernels.gaussians.forward import views_of
from lumigrad.kernels.gaussians.inputs import Gaussians, check_background, check_cameras
from lumigrad.kernels.gaussians.settings import Settings
from lumigrad.kernels.gaussians.transforms import cut
from lumigrad.kernels.prepared import Place


def prepare(
    gaussians: Gaussians,
    cameras: Sequence[Camera],
    settings: Settings,
    places: Sequence[Place],
    payload_bytes: int,
    head: bytes,
    *,
    background: torch.Tensor | None = None,
    most_together: int = 1,
) -> _native.NativeRender:
    """Prepares renders of one scene by cameras like these at other poses.

    Args:
        gaussians: One scene, which must not change while the result is in use.
        cameras: Created by `Camera.opencv`.
        settings: How to project and blend; not along rays.
        places: The outputs, each once, from `OUTPUTS` or `ON_SURFELS`, without "surface_normals".
        payload_bytes: The size of the payload.
        head: The bytes of a reply before its payload.
        background: f32 [D], or per camera [C, D]; None: 0.
        most_together: The most renders that run in one batch.

    Raises:
        ArgumentError: An argument is invalid.
    """
    check_cameras(gaussians, cameras, settings)
    assert gaussians.scenes == 1 and all(isinstance(camera.source, OpenCVSource) for camera in cameras)
    size = cameras[0].width, cameras[0].height
    backgrounds = check_background(background, gaussians, len(cameras))
    if backgrounds is not None:
        backgrounds = backgrounds.repeat(most_together, 1)
    return _native.gaussian_render(
        views_of(gaussians, cameras, settings, cut((), gaussians.count)),
        settings.native(gaussians.degree(settings), *size, lidar=False),
        places,
        payload_bytes,
        head,
        background=backgrounds,
        **gaussians.arrays(),
    )
