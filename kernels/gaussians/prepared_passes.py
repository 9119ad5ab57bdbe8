"""Retained renders that differ only in the poses of their cameras, and their states for `backward`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lumigrad.kernels import _native
from lumigrad.kernels.gaussians.camera import Camera
from lumigrad.kernels.gaussians.forward import views_of
from lumigrad.kernels.gaussians.inputs import Gaussians, check_background
from lumigrad.kernels.gaussians.settings import Settings
from lumigrad.kernels.gaussians.state import State
from lumigrad.kernels.gaussians.transforms import cut


@dataclass(frozen=True)
class Passes:
    """The passes of one device.

    Attributes:
        engine: The native engine.
        parts: Returns what the kernels keep in a state, and its images by name, each one-dimensional.
    """

    engine: _native.PassEngine
    parts: Callable[[_native.RetainedPass], tuple[Any, Mapping[str, torch.Tensor]]]


def cpu_passes() -> Passes:
    """The passes of the CPU."""
    return Passes(_native.cpu_passes(), _native.cpu_pass_parts)


def cuda_passes(native: Any, device: int, kernels: int, copies: int) -> Passes:
    """The passes of a CUDA device, on two of its streams; `native` is the extension."""
    return Passes(native.cuda_passes(device, kernels, copies), lambda state: native.cuda_pass_parts(state, device))


def images_of(state: State) -> Mapping[str, int]:
    """The number of values of each image that such states keep."""
    return {name: tensor.numel() for name, tensor in state.images.items()}


def state_of(
    passes: Passes,
    native: _native.RetainedPass,
    gaussians: Gaussians,
    cameras: Sequence[Camera],
    settings: Settings,
    *,
    background: torch.Tensor | None,
    outputs: Sequence[str],
) -> State:
    """The state of a prepared render, as `forward` with `retain` returns it for the same arguments."""
    slices = cut((), gaussians.count)
    width, height = cameras[0].width, cameras[0].height
    kept, images = passes.parts(native)
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
        kept=kept,
    )
