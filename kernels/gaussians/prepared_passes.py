"""Retained renders that differ in the poses of their cameras only, and their states as `backward` takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from lumigrad.kernels import _native
from lumigrad.kernels.gaussians.camera import Camera
from lumigrad.kernels.gaussians.forward import views_of
from lumigrad.kernels.gaussians.inputs import Gaussians, check_background
from lumigrad.kernels.gaussians.settings import Settings
from lumigrad.kernels.gaussians.state import State
from lumigrad.kernels.gaussians.transforms import cut


def images_of(state: State) -> Mapping[str, int]:
    """The number of values of each image that states of its kind keep."""
    return {name: tensor.numel() for name, tensor in state.images.items()}


def state_of(
    native: _native.RetainedPass,
    gaussians: Gaussians,
    cameras: Sequence[Camera],
    settings: Settings,
    *,
    background: torch.Tensor | None,
    outputs: Sequence[str],
) -> State:
    """The state of a prepared render on the CPU, as `forward` with `retain` returns it for the same arguments."""
    slices = cut((), gaussians.count)
    width, height = cameras[0].width, cameras[0].height
    images = {name: torch.from_numpy(array) for name, array in native.images().items()}
    sizes = {name: image.numel() // (len(cameras) * width * height) for name, image in images.items()}
    has_last = ("color", "normals")
    return State(
        gaussians=gaussians,
        cameras=tuple(cameras),
        settings=settings,
        slices=slices,
        background=check_background(background, gaussians, len(cameras)),
        background_per_camera=background is not None and background.dim() == 2,
        rays=None,
        outputs=tuple(outputs),
        images={
            name: image.view(len(cameras), height, width, *([sizes[name]] if name in has_last else []))
            for name, image in images.items()
        },
        views=views_of(gaussians, cameras, settings, slices),
        native_settings=settings.native(gaussians.degree(settings), width, height, lidar=False),
        kept=native.kept,
    )
