"""A photograph in memory, and how its file is read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lumigrad.client.base.arrays import Array
from lumigrad.client.base.extras import require
from lumigrad.client.formats.source import malformed
from lumigrad.client.values.target_image import TargetImage

Size = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Photograph:
    """A photograph in memory.

    Attributes:
        pixels: [H, W, 3] uint8.
        mask: [H, W] uint8, 0 where the photograph is ignored; None: nowhere.
        opacity: [H, W] uint8, 0 where the scene shall be empty; None: the photograph does not tell.
    """

    pixels: Array
    mask: Array | None = None
    opacity: Array | None = None

    @property
    def colors(self) -> Array:
        """[H, W, 3] float32, from 0 to 1."""
        return np.divide(self.pixels, 255, dtype=np.float32)

    @property
    def halved(self) -> Photograph:
        """The same at half the width and height."""
        image: Any = require("PIL.Image", "fit", "reading photographs")
        size = halved_size((self.pixels.shape[1], self.pixels.shape[0]))

        def reduced(array: Array | None, method: Any) -> Array | None:
            return None if array is None else np.asarray(image.fromarray(array).resize(size, method))

        # The mean of the pixels, as a sensor with fewer of them would see.
        mean, nearest = image.Resampling.BOX, image.Resampling.NEAREST
        pixels = reduced(self.pixels, mean)
        assert pixels is not None
        return Photograph(pixels, reduced(self.mask, nearest), reduced(self.opacity, mean))

    @property
    def target_image(self) -> TargetImage:
        """The target image of a training's view. Where a photograph is transparent its colours do not count."""
        if self.mask is None or self.opacity is None:
            return TargetImage(self.pixels, self.opacity if self.mask is None else self.mask)
        return TargetImage(self.pixels, np.minimum(self.mask, self.opacity))


def halved_size(size: Size) -> Size:
    """Half a width and height, at least one pixel."""
    return max(size[0] // 2, 1), max(size[1] // 2, 1)


def picture_size(path: Path, largest: int) -> Size:
    """Width and height of a picture reduced to at most `largest` pixels wide and high; only its header is read."""
    with _opened(path) as picture:
        width, height = picture.size
    share = min(largest / max(width, height), 1.0)
    return max(round(width * share), 1), max(round(height * share), 1)


def read_picture(path: Path, size: Size) -> Array:
    """Reads a picture, reduced to a width and height: [H, W, 4] uint8 if it may be transparent, else [H, W, 3]."""
    image: Any = require("PIL.Image", "fit", "reading photographs")
    with _opened(path) as picture:
        # A JPEG is decoded at a half, a quarter or an eighth of its size if that is at least twice the size wanted.
        picture.draft(None, (2 * size[0], 2 * size[1]))
        is_clear = picture.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in picture.info
        decoded = picture.convert("RGBA" if is_clear else "RGB")
        if decoded.size != size:
            decoded = decoded.resize(size, image.Resampling.LANCZOS, reducing_gap=2.0)
        return np.asarray(decoded, np.uint8)


def read_mask(path: Path, size: Size) -> Array:
    """Reads a mask [H, W] uint8 of a width and height."""
    image: Any = require("PIL.Image", "fit", "reading masks")
    with _opened(path) as mask:
        return np.asarray(mask.convert("L").resize(size, image.Resampling.NEAREST), np.uint8)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A picture that is not decoded yet; InvalidArgument names a file that is none."""
    image: Any = require("PIL.Image", "fit", "reading photographs")
    try:
        with image.open(path) as picture:
            yield picture
    except (OSError, ValueError, SyntaxError, image.DecompressionBombError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise malformed(path, f"expected a picture: {error}") from error
