"""Writes .sog files of version 2: a zip file of lossless WebP images and a meta.json."""

from __future__ import annotations

import io
import json
import math
import zipfile
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from lumigrad.client.base.arrays import Float32
from lumigrad.client.base.extras import require
from lumigrad.client.base.replacing import replaced
from lumigrad.client.formats.clustering import code_book, morton_order, nearest_entries, palette
from lumigrad.client.formats.scene import StoredScene, logarithms_of_scales, smallest_three, to_bytes
from lumigrad.client.formats.sog.files import META_NAME
from lumigrad.client.formats.sog.meta import LEVELS
from lumigrad.client.formats.sog.read import FIRST_TAG, PALETTE_WIDTH
from lumigrad.client.values.affine import unit_quats

Array = npt.NDArray[Any]

_LARGEST_PALETTE = 65536
# Largest logarithm of a scale that readers accept.
_LARGEST_LOGARITHM = 20.0
# WebP's own scale of effort, 0 to 6. More takes twice as long for half a percent of the bytes.
_EFFORT = 1
# A fixed time stamp makes files of equal scenes identical.
_DATE = (1980, 1, 1, 0, 0, 0)


def write_sog(scene: StoredScene, path: str | PathLike[str]) -> None:
    """Writes the Gaussians in Morton order, in which neighbours compress best."""
    contents = sog_files(scene.reordered(morton_order(scene.means)))
    with replaced(path) as new, zipfile.ZipFile(new, "w", zipfile.ZIP_STORED) as archive:
        for name, content in contents.items():
            archive.writestr(zipfile.ZipInfo(name, _DATE), content)


def sog_files(scene: StoredScene, largest_palette: int = _LARGEST_PALETTE) -> dict[str, bytes]:
    """Returns the contents of a scene's files by name, with its Gaussians in their own order.

    Args:
        scene: at least one Gaussian, harmonics of degree 3 at most.
        largest_palette: the most distinct sets of harmonics, up to 65,536.
    """
    meta: dict[str, Any] = {"version": 2, "asset": {"generator": "Lumigrad"}, "count": len(scene)}
    meta["antialias"] = scene.antialiased
    pictures = {}
    meta["means"], pictures["means_l"], pictures["means_u"] = _means(scene.means)
    largest, others = smallest_three(unit_quats(scene.quats))
    levels = to_bytes(others * (math.sqrt(2.0) / 2.0) + 0.5)
    pictures["quats"] = np.concatenate([levels, (largest + FIRST_TAG).astype(np.uint8)[:, None]], axis=1)
    meta["quats"] = {}
    logarithms = np.clip(logarithms_of_scales(scene.scales), -_LARGEST_LOGARITHM, _LARGEST_LOGARITHM)
    meta["scales"], pictures["scales"] = _coded(logarithms)
    meta["sh0"], base = _coded(scene.sh[:, 0])
    pictures["sh0"] = np.concatenate([base, to_bytes(scene.opacities)[:, None]], axis=1)
    names = {"means": ["means_l", "means_u"], "quats": ["quats"], "scales": ["scales"], "sh0": ["sh0"]}
    images = {name: _square(pixels) for name, pixels in pictures.items()}
    if scene.degree:
        meta["shN"], images["shN_centroids"], labels = _harmonics(scene, largest_palette)
        images["shN_labels"] = _square(labels)
        names["shN"] = ["shN_centroids", "shN_labels"]
    for entry, files in names.items():
        meta[entry]["files"] = [f"{name}.webp" for name in files]
    return {
        META_NAME: json.dumps(meta).encode(),
        **{f"{name}.webp": _webp(image) for name, image in images.items()},
    }


def _means(means: Float32) -> tuple[dict[str, Any], Array, Array]:
    """Returns the entry of meta.json, and the lower and upper bytes of sign(x) log(1 + |x|) in 16 bits."""
    wide = means.astype(np.float64)
    bent = np.sign(wide) * np.log1p(np.abs(wide))
    low, high = bent.min(axis=0), bent.max(axis=0)
    words = np.rint((bent - low) / np.where(high > low, high - low, 1.0) * 65535.0).astype(np.uint16)
    return {"mins": low.tolist(), "maxs": high.tolist()}, words & 255, words >> 8


def _coded(values: Float32) -> tuple[dict[str, Any], Array]:
    """Returns the entry of meta.json with a code book, and the levels of the values."""
    # Readers decode with the book in float32, so values are matched to the rounded book.
    book = code_book(values, LEVELS).astype(np.float32).astype(np.float64)
    return {"codebook": book.tolist()}, nearest_entries(book, values).astype(np.uint8)


def _harmonics(scene: StoredScene, largest: int) -> tuple[dict[str, Any], Array, Array]:
    """Returns the entry of meta.json, the image of the palette, and the labels [N, 3]."""
    coefficients = scene.sh.shape[1] - 1
    entries, labels = palette(scene.sh[:, 1:].reshape(len(scene), 3 * coefficients), largest)
    entry, levels = _coded(entries)
    rows = math.ceil(len(entries) / PALETTE_WIDTH)
    image = np.zeros((rows * PALETTE_WIDTH, coefficients, 3), np.uint8)
    image[: len(entries)] = levels.reshape(len(entries), coefficients, 3)
    packed = np.stack([labels & 255, labels >> 8, np.zeros_like(labels)], axis=1).astype(np.uint8)
    entry |= {"count": len(entries), "bands": scene.degree}
    return entry, image.reshape(rows, PALETTE_WIDTH * coefficients, 3), packed


def _square(pixels: Array) -> Array:
    """Returns pixels [N, D] as an image [H, W, D] with a few spare pixels at the end."""
    width = 4 * math.ceil(math.sqrt(len(pixels)) / 4)
    height = 4 * math.ceil(len(pixels) / width / 4)
    image = np.zeros((height * width, pixels.shape[1]), np.uint8)
    image[: len(pixels)] = pixels
    return image.reshape(height, width, pixels.shape[1])


def _webp(image: Array) -> bytes:
    images = require("PIL.Image", "io", "writing .sog files")
    buffer = io.BytesIO()
    # Exact: colours of transparent pixels are data, too.
    images.fromarray(image).save(buffer, "WEBP", lossless=True, exact=True, method=_EFFORT)
    return buffer.getvalue()
