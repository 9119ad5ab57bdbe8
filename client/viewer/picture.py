"""A picture on its way to a browser."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Literal

from lumigrad.client.extras import require
from lumigrad.client.named_arrays import Array
from lumigrad.client.timings import Timings

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
