"""An encoded image of the viewer, with timings and depths."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
import viser
from viser import _messages

from lumigrad.client.base.arrays import Array, Float32
from lumigrad.client.base.extras import require
from lumigrad.client.base.timings import Timings

# JPEG colours keep the full resolution from this quality on, as in the worker.
_FINE_QUALITY = 90
COARSE_QUALITY, SHARP_QUALITY = 80, 95


@dataclass(frozen=True)
class Picture:
    """An encoded image.

    Attributes:
        file: the image, a JPEG.
        depths: a PNG of depths, see `depth_file`; None: the browser draws the image behind all of its objects.
        timings: timings of the call that rendered it.
    """

    file: bytes
    depths: bytes | None
    timings: Timings

    @property
    def nbytes(self) -> int:
        """The bytes sent to the browser."""
        return len(self.file) + len(self.depths or b"")


def jpeg_of(levels: Array, *, is_sharp: bool) -> bytes:
    """Encodes [H, W] or [H, W, 3] levels, uint8."""
    image = require("PIL.Image", "viewer", "making JPEG files")
    quality = SHARP_QUALITY if is_sharp else COARSE_QUALITY
    file = io.BytesIO()
    image.fromarray(levels).save(file, "JPEG", quality=quality, subsampling=0 if quality >= _FINE_QUALITY else 2)
    return file.getvalue()


def png_of(levels: Array) -> bytes:
    """Encodes [H, W, 3] levels, uint8; fast rather than small."""
    image = require("PIL.Image", "viewer", "making PNG files")
    file = io.BytesIO()
    image.fromarray(levels).save(file, "PNG", compress_level=1)
    return file.getvalue()


# Depths are sent as 24-bit multiples of this unit; the largest stands for anything farther, and for no surface.
_UNITS_PER_LENGTH = 100_000
_LARGEST = 2**24 - 1
# Wider maps of depths would take longer than the images; the browser interpolates.
_WIDEST = 480
# Below this opacity, objects behind are visible.
_SOLID = 0.5


def show(browser: viser.ClientHandle, picture: Picture) -> None:
    """Shows an image in a browser's window.

    viser's public interface takes pixels, so the worker's file would have to be decoded and compressed again, which
    takes half of the time between images.
    """
    message = _messages.BackgroundImageMessage(format="jpeg", rgb_data=picture.file, depth_data=picture.depths)
    browser.scene._websock_interface.queue_message(message)
    browser.flush()


def depth_file(depth: Array, alpha: Array) -> bytes | None:
    """Encodes depths along the view direction as a PNG, by which the browser mixes its own objects with the scene.

    Args:
        depth: [H, W] scene units; negative where there is no surface.
        alpha: [H, W] 0 to 1.

    Returns:
        The file; None: the scene is too large for such depths.
    """
    stride = -(-depth.shape[1] // _WIDEST)
    first = stride // 2
    coarse: Float32 = np.asarray(depth[first::stride, first::stride], np.float32)
    is_solid = (alpha[first::stride, first::stride] >= _SOLID) & (coarse >= 0.0)
    units = np.nan_to_num(coarse.astype(np.float64) * _UNITS_PER_LENGTH)
    if (units[is_solid] > _LARGEST).any():
        return None
    packed = np.where(is_solid, units, _LARGEST).astype("<u4")
    # Red is the highest byte, blue the lowest.
    return png_of(packed[..., None].view(np.uint8)[..., 2::-1])
