"""What the backward pass needs of a forward pass."""

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
    """Of a `forward` with `retain`.

    Attributes:
        gaussians: The scene.
        cameras: The views.
        settings: The settings.
        slices: Of the scene, where transforms begin and end.
        background: [V, D] or None: 0.
        background_per_camera: Whether the background was given as [V, D] and not [D].
        images: Rendered images by name, those that backward looks at: "color", "transmittance", and "depth" and
            "inverse_depth" where they were asked for.
        views, native_settings: For the extension.
        kept: What the engine keeps.
    """

    gaussians: Gaussians
    cameras: tuple[Camera, ...]
    settings: Settings
    slices: Slices
    background: torch.Tensor | None
    background_per_camera: bool
    images: Mapping[str, torch.Tensor]
    views: Any
    native_settings: Any
    kept: Kept

    @property
    def bytes(self) -> int:
        """Memory it holds, the scene included."""
        tensors = [*self.gaussians.tensors().values(), *self.images.values()]
        if self.background is not None:
            tensors.append(self.background)
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors) + self.kept.bytes
