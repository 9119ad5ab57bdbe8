"""One picture of the viewer: encoded, with its timings, over a background."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Literal

import numpy as np
import viser
from viser import _messages

from lumigrad.client.base.arrays import Array, Float32
from lumigrad.client.base.extras import require
from lumigrad.client.base.timings import Timings

# From here on the colours of a JPEG keep the full resolution, as in the worker's.
_FINE_QUALITY = 90
COARSE_QUALITY, SHARP_QUALITY = 80, 95


@dataclass(frozen=True)
class Picture:
    """Files and facts.

    Attributes:
        file: the picture, JPEG or PNG.
        format: of the file.
        depths: a PNG of depths, see `backdrop`; None: the picture is behind everything.
        timings: of the call that rendered it.
    """

    file: bytes
    format: Literal["jpeg", "png"]
    depths: bytes | None
    timings: Timings

    @property
    def nbytes(self) -> int:
        """What travels to the browser."""
        return len(self.file) + len(self.depths or b"")


def jpeg_of(levels: Array, *, is_sharp: bool) -> bytes:
    """The file of [H, W] or [H, W, 3] levels, uint8."""
    image = require("PIL.Image", "viewer", "making JPEG files")
    quality = SHARP_QUALITY if is_sharp else COARSE_QUALITY
    file = io.BytesIO()
    image.fromarray(levels).save(file, "JPEG", quality=quality, subsampling=0 if quality >= _FINE_QUALITY else 2)
    return file.getvalue()


def png_of(levels: Array) -> bytes:
    """The file of [H, W, 3] levels, uint8; large rather than late."""
    image = require("PIL.Image", "viewer", "making PNG files")
    file = io.BytesIO()
    image.fromarray(levels).save(file, "PNG", compress_level=1)
    return file.getvalue()


# Depths travel as 24-bit numbers of this unit; the largest stands for what is farther, or nothing.
_UNITS_PER_LENGTH = 100_000
_LARGEST = 2**24 - 1
# Wider maps would take longer than the pictures; the browser interpolates.
_WIDEST = 480
# Where less of the light is stopped, one sees what is behind.
_SOLID = 0.5


def show(browser: viser.ClientHandle, picture: Picture) -> None:
    """Puts a picture into a browser's window.

    The worker has compressed it already. What viser offers for this in public takes pixels, and would have them
    decoded here and compressed again: half of the time between pictures.
    """
    message = _messages.BackgroundImageMessage(format=picture.format, rgb_data=picture.file, depth_data=picture.depths)
    browser.scene._websock_interface.queue_message(message)
    browser.flush()


def depth_file(depth: Array, alpha: Array) -> bytes | None:
    """A PNG of how far along the view direction something solid is, so that the browser's own things mix with it.

    Args:
        depth: [H, W] scene units; negative where nothing is.
        alpha: [H, W] 0 to 1.

    Returns:
        None where the scene is larger than such depths can tell.
    """
    stride = -(-depth.shape[1] // _WIDEST)
    first = stride // 2
    coarse: Float32 = np.asarray(depth[first::stride, first::stride], np.float32)
    is_solid = (alpha[first::stride, first::stride] >= _SOLID) & (coarse >= 0.0)
    units = np.nan_to_num(coarse.astype(np.float64) * _UNITS_PER_LENGTH)
    if (units[is_solid] > _LARGEST).any():
        return None
    packed = np.where(is_solid, units, _LARGEST).astype("<u4")
    # The lowest byte is blue, the highest red.
    return png_of(packed[..., None].view(np.uint8)[..., 2::-1])
