"""Photographs with the cameras that took them, ready to be compared with renderings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image

from lumigrad.client import Camera
from lumigrad.client.datasets import View


@dataclass(frozen=True)
class Shot:
    """A photograph and its camera.

    Attributes:
        pixels: uint8 [H, W, 3].
        camera: that took it.
    """

    pixels: torch.Tensor
    camera: Camera

    @staticmethod
    def of(view: View, size: int) -> Shot:
        """Reads a view's photograph, at most `size` pixels wide and high; what is transparent in it is black."""
        assert view.image is not None
        image = Image.open(view.image).convert("RGBA")
        image.thumbnail((size, size), Image.Resampling.LANCZOS)
        image = Image.alpha_composite(Image.new("RGBA", image.size, "black"), image).convert("RGB")
        return Shot(torch.from_numpy(np.array(image)), view.resized(*image.size).camera)

    @property
    def photograph(self) -> torch.Tensor:
        """[H, W, 3] values from 0 to 1."""
        return self.pixels / 255
