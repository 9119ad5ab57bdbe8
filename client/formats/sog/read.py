"""Reads SOG: Gaussians as a folder or archive of images with a meta.json."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lumigrad.client.base.arrays import Float32
from lumigrad.client.formats.scene import (
    StoredScene,
    from_smallest_three,
    opacities_from_logits,
    scales_from_logarithms,
)
from lumigrad.client.formats.sog.files import SogFiles
from lumigrad.client.formats.sog.meta import SogMeta

Array = npt.NDArray[Any]

# The fourth channel of a rotation is this plus the omitted component.
FIRST_TAG = 252
PALETTE_WIDTH = 64


def read_sog(path: Path) -> StoredScene:
    """Reads a .sog file, or a folder's meta.json and its images; versions 1 and 2."""
    with closing(SogFiles(path)) as files:
        return _read(SogMeta(files.meta(), files.fail), files)


def _read(meta: SogMeta, files: SogFiles) -> StoredScene:
    count = meta.count
    files.check_growth(count)

    def pixels(entry: str, place: int = 0) -> Array:
        return files.picture(meta.file(entry, place), count).reshape(-1, 4)[:count]

    colors = pixels("sh0")
    scales = meta.decode("scales", pixels("scales")[:, :3])
    base = meta.decode("sh0", colors[:, :3])
    if meta.version == 1:
        opacities = opacities_from_logits(meta.between("sh0", 3, colors[:, 3] / 255.0))
    else:
        opacities = (colors[:, 3] / 255.0).astype(np.float32)
    sh = base[:, None].astype(np.float32)
    if meta.has("shN"):
        sh = np.concatenate([sh, _harmonics(meta, files, pixels("shN", 1))], axis=1)
    # Positions are stored as sign(x) log(1 + |x|), evenly between bounds.
    words = pixels("means", 0)[:, :3].astype(np.int32) | pixels("means", 1)[:, :3].astype(np.int32) << 8
    bent = np.stack([meta.between("means", axis, words[:, axis] / 65535.0) for axis in range(3)], axis=1)
    return StoredScene(
        means=np.asarray(np.sign(bent) * np.expm1(np.abs(bent)), np.float32),
        quats=_rotations(pixels("quats")),
        scales=scales_from_logarithms(scales),
        opacities=opacities,
        sh=sh,
        antialiased=meta.antialiased,
        details={"format": "SOG", "version": meta.version},
    )


def _rotations(levels: Array) -> Float32:
    tags = levels[:, 3].astype(np.int64) - FIRST_TAG
    others = (levels[:, :3] / 255.0 * 2.0 - 1.0) / np.sqrt(2.0)
    quats: Float32 = from_smallest_three(np.maximum(tags, 0), others)
    # Any other tag means no rotation.
    quats[tags < 0] = (1.0, 0.0, 0.0, 0.0)
    return quats


def _harmonics(meta: SogMeta, files: SogFiles, labels: Array) -> Float32:
    """Returns [N, K - 1, 3] from a palette, an image with 64 entries per row and one pixel per coefficient."""
    picture = files.picture(meta.file("shN", 0), 0)
    degree = meta.degree(picture.shape[1] // PALETTE_WIDTH)
    coefficients = (degree + 1) ** 2 - 1
    if picture.shape[1] != PALETTE_WIDTH * coefficients:
        raise files.fail(
            f"expected a palette {PALETTE_WIDTH * coefficients} pixels wide for degree {degree} in "
            f"{meta.file('shN', 0)}, got {picture.shape[1]}"
        )
    palette = meta.decode("shN", picture[..., :3]).reshape(-1, coefficients, 3).astype(np.float32)
    index = labels[:, 0].astype(np.int64) | labels[:, 1].astype(np.int64) << 8
    used = min(meta.palette_count(len(palette)), len(palette))
    if len(index) and index.max() >= used:
        raise files.fail(
            f"expected labels below {used:,}, the size of the palette, in {meta.file('shN', 1)}, got {index.max():,}"
        )
    return np.asarray(palette[index])
