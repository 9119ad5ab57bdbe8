"""The content of an image: colours, depths, normals or alpha."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lumigrad.client.base.arrays import Array
from lumigrad.client.commands.aim import depth_range
from lumigrad.client.datasets import View
from lumigrad.client.pictures import ramp_colors
from lumigrad.client.rendering.frame import Frame
from lumigrad.client.settings.image_format import ImageFormats
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.spheres import Spheres

NAMES = ("color", "depth", "expected_depth", "median_depth", "alpha", "normals", "surface_normals")


@dataclass(frozen=True)
class Content:
    """Output, and its conversion to an image.

    Attributes:
        name: one of `NAMES`.
        nearest: the depth shown lightest, scene units; one for all images, so that videos do not flicker.
        farthest: the depth shown darkest.
    """

    name: str
    nearest: float = 0.0
    farthest: float = 1.0

    @staticmethod
    def of(name: str, scene: Spheres | Gaussians, shots: Sequence[View]) -> Content:
        """Returns the content for the images of a scene."""
        if not name.endswith("depth"):
            return Content(name)
        gaussians = isinstance(scene, Gaussians)
        points = scene.means.reshape(-1, 3) if isinstance(scene, Gaussians) else scene.positions
        opacities = scene.opacities.reshape(-1) if gaussians and scene.opacities is not None else None
        return Content(name, *depth_range(points, opacities, [shot.camera for shot in shots]))

    @property
    def outputs(self) -> tuple[str, ...]:
        """The outputs that an image needs."""
        return (self.name, "alpha") if self.name.endswith("depth") else (self.name,)

    @property
    def image_formats(self) -> ImageFormats:
        """The smallest formats that keep 8 bits per channel."""
        return {self.name: "uint8"} if self.name in ("color", "alpha") else {}

    def picture(self, frame: Frame) -> Array:
        """Returns [H, W] or [H, W, K], values from 0 to 1 or levels in uint8.

        Near depths are light; pixels without depth are black. Components of normals from -1 to 1 become 0 to 1.
        """
        values = frame[self.name]
        if self.name.endswith("normals"):
            return np.asarray(0.5 + 0.5 * values, np.float32).clip(0.0, 1.0)
        if not self.name.endswith("depth"):
            return values
        closeness = (self.farthest - values) / (self.farthest - self.nearest)
        # Spheres have depth -1 where nothing is hit.
        share = np.where(values < 0, 0.0, frame.alpha)
        return np.asarray(ramp_colors(closeness) * share[..., None], np.float32)
