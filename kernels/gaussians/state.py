"""State of a forward pass that the backward pass needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from lumigrad.kernels.gaussians.camera import Camera
from lumigrad.kernels.gaussians.engine import Kept
from lumigrad.kernels.gaussians.inputs import Gaussians
from lumigrad.kernels.gaussians.settings import Settings
from lumigrad.kernels.gaussians.transforms import Slices


@dataclass(frozen=True, eq=False)
class State:
    """State of a `forward` with `retain` that `backward` needs.

    Attributes:
        gaussians: The scene.
        cameras: The views.
        settings: The settings.
        slices: The slices of the scene: one per transform, and the rest between them.
        background: [V, D], or None for 0.
        background_per_camera: Whether the background was given as [V, D], not [D].
        rays: The given rays, [V, H, W, 6], or None.
        outputs: Names of the outputs that were rendered.
        images: The rendered images that backward needs, by name: "color", "transmittance", and "depth",
            "inverse_depth", "hit_distance", "normals" and "distortion" if outputs need them.
        views, native_settings: Arguments of the extension.
        kept: The engine's state.
    """

    gaussians: Gaussians
    cameras: tuple[Camera, ...]
    settings: Settings
    slices: Slices
    background: torch.Tensor | None
    background_per_camera: bool
    rays: torch.Tensor | None
    outputs: tuple[str, ...]
    images: Mapping[str, torch.Tensor]
    views: Any
    native_settings: Any
    kept: Kept

    @property
    def bytes(self) -> int:
        """Memory in use, including the scene."""
        tensors = [*self.gaussians.tensors().values(), *self.images.values()]
        tensors += [tensor for tensor in (self.background, self.rays) if tensor is not None]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors) + self.kept.bytes
