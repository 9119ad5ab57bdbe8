"""Writes renderings as PNG, JPEG and NumPy files, and converts numbers to colours."""

from __future__ import annotations

import io
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lumigrad.client.base.arrays import Array, Float32, check_levels
from lumigrad.client.base.extras import require
from lumigrad.client.base.replacing import replaced
from lumigrad.client.errors import InvalidArgument

__all__ = ["check_suffix", "levels_of", "ramp_colors", "write_depth", "write_image"]

# Channels that a PNG can hold: grey, colour, colour with alpha.
_PNG_CHANNELS = (1, 3, 4)
_JPEG_CHANNELS = (3,)
_JPEG_QUALITY = 90
# Evenly spaced sRGB colours from dark blue over green to pale yellow, each lighter than the one before.
_STOPS = (
    (0.09, 0.07, 0.26),
    (0.17, 0.20, 0.53),
    (0.12, 0.41, 0.62),
    (0.13, 0.60, 0.58),
    (0.37, 0.76, 0.42),
    (0.74, 0.87, 0.28),
    (0.99, 0.95, 0.63),
)


def check_suffix(path: str | PathLike[str], channels: int) -> None:
    """Checks, before anything is rendered, that a file of this name can hold this number of channels.

    Args:
        path: the file.
        channels: channels of each pixel.

    Raises:
        InvalidArgument: the format cannot hold them.
        MissingPackage: Pillow, which writes images, is not installed.

    Example:
        check_suffix(folder / "picture.jpg", 3)
    """
    path = Path(path)
    fitting = {".png": _PNG_CHANNELS, ".jpg": _JPEG_CHANNELS}.get(path.suffix)
    if fitting is not None:
        require("PIL.Image", "io", f"writing {path.suffix} files")
        if channels not in fitting:
            expected = " or ".join(", ".join(map(str, fitting)).rsplit(", ", 1))
            raise InvalidArgument.of(
                "output", f"expected {expected} channels for a {path.suffix}, got {channels}; write .npy"
            )


def write_depth(path: str | PathLike[str], depth: Array) -> None:
    """Writes depths: unchanged as .npy; as .png from white (closest) to dark (farthest), black where there is none.

    Args:
        path: the file.
        depth: [H, W], scene units; 0 or less where there is no surface.

    Raises:
        MissingPackage: Pillow, which writes images, is not installed.
        OSError: the file cannot be written.

    Example:
        frame = client.render(gaussians, camera, outputs=("expected_depth",))
        write_depth(folder / "depth.png", frame.expected_depth)
    """
    path = Path(path)
    if path.suffix == ".npy":
        with replaced(path) as new:
            np.save(new, depth)
        return
    # Pixels without a surface have depth -1 for spheres and 0 for Gaussians.
    seen = depth > 0
    shade = np.zeros(depth.shape, np.float32)
    if seen.any():
        near, far = float(depth[seen].min()), float(depth[seen].max())
        shade[seen] = 1.0 - 0.85 * (depth[seen] - near) / max(far - near, 1e-12)
    write_image(path, shade)


def write_image(path: str | PathLike[str], picture: Array) -> None:
    """Writes an image as .png, .jpg or another format that Pillow can write.

    Args:
        path: the file.
        picture: [H, W] or [H, W, 1 | 3 | 4], uint8 levels or values, which are clipped to 0 to 1.

    Raises:
        InvalidArgument: the picture has integers other than uint8, beyond 0 and 1.
        MissingPackage: Pillow, which writes images, is not installed.
        ValueError: Pillow knows no format with this suffix.
        OSError: the file cannot be written, or its format cannot hold these channels.

    Example:
        write_image(folder / "picture.png", client.render(gaussians, camera).color)
    """
    path = Path(path)
    image = require("PIL.Image", "io", f"writing {path.suffix} files")
    levels = levels_of(picture)
    shown = image.fromarray(levels[..., 0] if levels.ndim == 3 and levels.shape[2] == 1 else levels)
    # Pillow does not notice when a full disk truncates a JPEG, so it encodes to memory first.
    file: Any = io.BytesIO()
    file.name = path.name
    shown.save(file, **({"quality": _JPEG_QUALITY} if path.suffix == ".jpg" else {}))
    with replaced(path) as new:
        new.write_bytes(file.getvalue())


def levels_of(picture: Array) -> Array:
    """Converts values from 0 to 1 to levels 0 to 255, clipping others and NaN to 0; uint8 levels stay unchanged.

    Args:
        picture: values of any shape.

    Raises:
        InvalidArgument: the values are integers other than uint8, beyond 0 and 1.

    Example:
        levels_of(np.array([0.0, 0.5, 2.0]))  # 0, 128, 255
    """
    if picture.dtype == np.uint8:
        return picture
    check_levels("picture", picture)
    return np.asarray(np.rint(np.clip(np.nan_to_num(picture), 0.0, 1.0) * 255.0), np.uint8)


def ramp_colors(fractions: npt.NDArray[Any]) -> Float32:
    """Returns colours [..., 3] of numbers from 0 (dark) to 1 (light); others are clipped, NaN is dark.

    Args:
        fractions: numbers of any shape.

    Example:
        frame = client.render(gaussians, camera, outputs=("alpha",))
        write_image(folder / "alpha.png", ramp_colors(frame.alpha))
    """
    places = np.linspace(0.0, 1.0, len(_STOPS))
    inside = np.clip(np.nan_to_num(fractions), 0.0, 1.0)
    return np.stack([np.interp(inside, places, channel) for channel in zip(*_STOPS, strict=True)], axis=-1).astype(
        np.float32
    )
