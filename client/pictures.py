"""Renderings as files: PNG for eyes, NumPy for programs."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lumigrad.client.errors import InvalidArgument
from lumigrad.client.extras import require
from lumigrad.client.frame import Frame
from lumigrad.client.named_arrays import Array

# Channels that a PNG can hold: grey, colour, colour with alpha.
_PNG_CHANNELS = (1, 3, 4)


def check_suffix(path: Path, channels: int) -> None:
    """Raises InvalidArgument if a file of this name cannot hold so many channels, before anything is rendered."""
    if path.suffix == ".png":
        require("PIL.Image", "io", "writing PNG files")
        if channels not in _PNG_CHANNELS:
            raise InvalidArgument.of("output", f"expected 1, 3 or 4 channels for a .png, got {channels}; write .npy")


def write_picture(path: Path, frame: Frame) -> None:
    """Writes a frame of one camera: .png its colour, .npy its colour as float32 [H, W, K], .npz every output."""
    if path.suffix == ".npz":
        np.savez(path, **dict(frame))  # type: ignore[arg-type]
    elif path.suffix == ".npy":
        np.save(path, frame.color)
    else:
        write_png(path, frame.color)


def write_depth(path: Path, depth: Array) -> None:
    """Writes depths [H, W]: .npy as they are; .png from white (closest) to dark (farthest), black where nothing is."""
    if path.suffix == ".npy":
        np.save(path, depth)
        return
    # Spheres say -1 where nothing is, Gaussians 0.
    seen = depth > 0
    shade = np.zeros(depth.shape, np.float32)
    if seen.any():
        near, far = float(depth[seen].min()), float(depth[seen].max())
        shade[seen] = 1.0 - 0.85 * (depth[seen] - near) / max(far - near, 1e-12)
    write_png(path, shade)


def write_png(path: Path, picture: Array) -> None:
    """Writes [H, W] or [H, W, 1 | 3 | 4] values from 0 to 1; others are clipped."""
    image = require("PIL.Image", "io", "writing PNG files")
    levels = levels_of(picture)
    image.fromarray(levels[..., 0] if levels.ndim == 3 and levels.shape[2] == 1 else levels).save(path)


def levels_of(picture: Array) -> Array:
    """0..1 as 0..255, rounded; what lies outside is clipped, what is no number is 0."""
    return np.asarray(np.rint(np.clip(np.nan_to_num(picture), 0.0, 1.0) * 255.0), np.uint8)
