"""A caller of Pulsar's `Renderer` that uses the same attributes and arguments as PyTorch3D's PulsarPointsRenderer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class PointsCamera:
    """A camera in PyTorch3D's terms: x_cam = x R + T, +x left, +y up, +z ahead.

    Attributes:
        R: [3, 3].
        T: [3].
        scale: focal length of a perspective camera, 1 over half the width of an orthographic one; both in units of half
            the picture's width.
        orthographic: parallel rays.
    """

    R: torch.Tensor
    T: torch.Tensor
    scale: float
    orthographic: bool = False

    def pixel(self, point: torch.Tensor, size: int) -> torch.Tensor:
        """The position (x, y) of a point in a square picture."""
        x, y, z = point @ self.R + self.T
        depth = 1.0 if self.orthographic else z
        return size * (0.5 - 0.5 * self.scale * torch.stack([x, y]) / depth) - 0.5


class PointsRenderer(torch.nn.Module):
    """Renders points of one radius with a camera that may move, but not change its type or size."""

    def __init__(self, renderer: torch.nn.Module, camera: PointsCamera, size: int) -> None:
        """`renderer` renders the pictures."""
        super().__init__()
        self.renderer, self.camera, self.size = renderer, camera, size

    def forward(
        self, positions: torch.Tensor, colors: torch.Tensor, radius: float, znear: float, zfar: float, **options: Any
    ) -> torch.Tensor:
        """One picture."""
        native: Any = self.renderer._renderer
        if native.orthogonal != self.camera.orthographic:
            raise ValueError(f"the kind of camera has changed since the renderer was made: {native.orthogonal}")
        if (native.width, native.height) != (self.size, self.size):
            raise ValueError(f"the size has changed since the renderer was made: {native.width} x {native.height}")
        left, up, ahead = self.camera.R.unbind(1)
        rotation = torch.stack([-left, up, -ahead], dim=1)
        focal = 0.0 if self.camera.orthographic else znear - 1e-6
        sensor = 2.0 / self.camera.scale * (1.0 if self.camera.orthographic else focal)
        eye = -self.camera.R @ self.camera.T
        parameters = torch.cat([eye, rotation[:2].flatten(), torch.tensor([focal, sensor, 0.0, 0.0])])
        return self.renderer(
            vert_pos=positions,
            vert_col=colors,
            vert_rad=torch.full((len(positions),), radius),
            cam_params=parameters,
            max_depth=torch.tensor([zfar]),
            min_depth=torch.tensor([znear]),
            bg_col=torch.zeros(colors.shape[1]),
            **options,
        )
