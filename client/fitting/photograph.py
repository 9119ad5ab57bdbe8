"""A photograph in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lumigrad.client.base.arrays import Array
from lumigrad.client.base.extras import require
from lumigrad.client.fitting.picture_file import Size
from lumigrad.client.values.target_image import TargetImage


@dataclass(frozen=True, eq=False)
class Photograph:
    """A photograph in memory.

    Attributes:
        pixels: [H, W, 3] uint8.
        mask: [H, W] uint8, 0 where the photograph is ignored; None: nothing is ignored.
        opacity: [H, W] uint8, 0 where the scene must be empty; None: unknown.
    """

    pixels: Array
    mask: Array | None = None
    opacity: Array | None = None

    @property
    def colors(self) -> Array:
        """The colours [H, W, 3] float32, from 0 to 1."""
        return np.divide(self.pixels, 255, dtype=np.float32)

    @property
    def halved(self) -> Photograph:
        """The photograph at half the width and height."""
        image: Any = require("PIL.Image", "fit", "reading photographs")
        size = halved_size((self.pixels.shape[1], self.pixels.shape[0]))

        def reduced(array: Array | None, method: Any) -> Array | None:
            return None if array is None else np.asarray(image.fromarray(array).resize(size, method))

        # Pixels are averaged, as a sensor with fewer pixels would.
        mean, nearest = image.Resampling.BOX, image.Resampling.NEAREST
        pixels = reduced(self.pixels, mean)
        assert pixels is not None
        return Photograph(pixels, reduced(self.mask, nearest), reduced(self.opacity, mean))

    @property
    def weighted(self) -> float:
        """The share of the pixels whose level in the mask is between black and white, which is their weight."""
        return 0.0 if self.mask is None else float(((self.mask > 0) & (self.mask < 255)).mean())

    @property
    def target_image(self) -> TargetImage:
        """The target image for a training. Where the photograph is transparent, its colours do not count."""
        if self.mask is None or self.opacity is None:
            return TargetImage(self.pixels, self.opacity if self.mask is None else self.mask)
        return TargetImage(self.pixels, np.minimum(self.mask, self.opacity))


def halved_size(size: Size) -> Size:
    """Returns half of a width and height, at least one pixel each."""
    return max(size[0] // 2, 1), max(size[1] // 2, 1)
