"""Photographs with the cameras that took them, ready to be compared with renderings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image

from lumigrad.client import Camera
from lumigrad.client.camera_models import OpenCVModel
from lumigrad.client.datasets import View


@dataclass(frozen=True)
class Shot:
    """A photograph and its camera.

    Attributes:
        pixels: uint8 [H, W, 3].
        camera: that took it.
        model: the camera's.
        view_matrix: [1, 4, 4] world to camera, float64.
        intrinsics: [1, 3, 3] the matrix K, pixels, float64.
    """

    pixels: torch.Tensor
    camera: Camera
    model: OpenCVModel
    view_matrix: torch.Tensor
    intrinsics: torch.Tensor

    @staticmethod
    def of(view: View, size: int) -> Shot:
        """Reads a view's photograph, at most `size` pixels wide and high; what is transparent in it is black."""
        assert view.image is not None
        image = Image.open(view.image).convert("RGBA")
        image.thumbnail((size, size), Image.Resampling.LANCZOS)
        image = Image.alpha_composite(Image.new("RGBA", image.size, "black"), image).convert("RGB")
        camera = view.resized(*image.size).camera
        model = camera.model
        # The only one that data sets have.
        assert isinstance(model, OpenCVModel)
        view_matrix, intrinsics = torch.eye(4, dtype=torch.float64)[None], torch.eye(3, dtype=torch.float64)[None]
        view_matrix[0, :3, :3], view_matrix[0, :3, 3] = torch.tensor(model.rotation), torch.tensor(model.translation)
        intrinsics[0, :2] = torch.tensor([[model.fx, 0, model.cx], [0, model.fy, model.cy]])
        return Shot(torch.from_numpy(np.array(image)), camera, model, view_matrix, intrinsics)

    @property
    def photograph(self) -> torch.Tensor:
        """[H, W, 3] values from 0 to 1."""
        return self.pixels / 255


def extent_of(shots: Sequence[Shot]) -> float:
    """How far the cameras stand from their middle, and a little more; scene units."""
    eyes = np.stack([shot.model.eye for shot in shots])
    return 1.1 * float(np.linalg.norm(eyes - eyes.mean(axis=0), axis=1).max())
