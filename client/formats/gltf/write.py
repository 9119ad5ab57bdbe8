"""Writes Gaussians as glTF: one primitive with KHR_gaussian_splatting, all numbers float32."""

from __future__ import annotations

import json
import struct
from os import PathLike
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from lumigrad.client.base.arrays import Float32
from lumigrad.client.base.replacing import replaced
from lumigrad.client.formats.gltf.accessors import FLOAT
from lumigrad.client.formats.gltf.document import BINARY_CHUNK, GLB_MAGIC, GLB_VERSION, JSON_CHUNK
from lumigrad.client.formats.gltf.read import EXTENSION, PREFIX
from lumigrad.client.formats.placement import half_turned
from lumigrad.client.formats.scene import BY_DISTANCE, StoredScene
from lumigrad.client.formats.source import malformed
from lumigrad.client.values.affine import unit_quats

_TYPES = {1: "SCALAR", 3: "VEC3", 4: "VEC4"}
_VERTICES = 34962
# Chunk lengths are 32 bits.
_LARGEST_FILE = (1 << 32) - 1


def write_glb(scene: StoredScene, path: str | PathLike[str]) -> None:
    """Writes a .glb file, turned to glTF's axes: left, up, forward."""
    values, content = _document(scene, None)
    text = json.dumps(values, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 4)
    total = 12 + 8 + len(text) + 8 + len(content)
    if total > _LARGEST_FILE:
        raise malformed(path, f"expected less than 4 GiB, a .glb file's limit, got {total:,} bytes; write a .gltf file")
    with replaced(path) as new, open(new, "wb") as file:
        file.write(struct.pack("<4sIIII", GLB_MAGIC, GLB_VERSION, total, len(text), JSON_CHUNK) + text)
        file.write(struct.pack("<II", len(content), BINARY_CHUNK))
        file.write(content)


def write_gltf(scene: StoredScene, path: str | PathLike[str]) -> None:
    """Writes a .gltf file, and its buffer to a .bin file of the same name, which replaces that of an older .gltf."""
    buffer = Path(path).with_suffix(".bin")
    if buffer.exists() and not Path(path).exists():
        # COLMAP's models, for example, have files of this suffix.
        expected = f"expected no {buffer.name} beside a new .gltf file, whose numbers it would have"
        raise malformed(path, f"{expected}, got one of something else; choose another name, or write .glb")
    values, content = _document(scene, quote(buffer.name))
    # Neither file is replaced before both are written.
    with replaced(buffer) as numbers, replaced(path) as text:
        numbers.write_bytes(content)
        text.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


def _document(scene: StoredScene, uri: str | None) -> tuple[dict[str, Any], bytes]:
    """Returns the JSON and the buffer; `uri` names the buffer's file."""
    arrays = _arrays(half_turned(scene))
    contents = [np.ascontiguousarray(array, "<f4").tobytes() for array in arrays.values()]
    starts = np.cumsum([0, *map(len, contents)]).tolist()
    views = [
        {"buffer": 0, "byteOffset": start, "byteLength": len(content), "target": _VERTICES}
        for start, content in zip(starts, contents, strict=False)
    ]
    accessors: list[dict[str, Any]] = [
        {"bufferView": k, "componentType": FLOAT, "count": len(scene), "type": _TYPES[array.shape[1]]}
        for k, array in enumerate(arrays.values())
    ]
    means = arrays["POSITION"]
    accessors[0] |= {"min": means.min(axis=0).tolist(), "max": means.max(axis=0).tolist()}
    primitive = {
        "mode": 0,
        "attributes": {name: k for k, name in enumerate(arrays)},
        "extensions": {EXTENSION: {"kernel": "ellipse", "colorSpace": scene.color_space, "sortingMethod": BY_DISTANCE}},
    }
    values = {
        "asset": {"version": "2.0", "generator": "Lumigrad"},
        "extensionsUsed": [EXTENSION],
        "scene": 0,
        "scenes": [{"nodes": [0]}],
        "nodes": [{"mesh": 0}],
        "meshes": [{"primitives": [primitive]}],
        "accessors": accessors,
        "bufferViews": views,
        "buffers": [{"byteLength": starts[-1]} | ({} if uri is None else {"uri": uri})],
    }
    return values, b"".join(contents)


def _arrays(scene: StoredScene) -> dict[str, Float32]:
    """Returns the arrays [N, width] by attribute."""
    quats = unit_quats(scene.quats)[:, [1, 2, 3, 0]].astype(np.float32)
    arrays = {
        "POSITION": scene.means,
        f"{PREFIX}ROTATION": quats,
        f"{PREFIX}SCALE": scene.scales,
        f"{PREFIX}OPACITY": scene.opacities[:, None],
    }
    for band in range(scene.degree + 1):
        for k in range(2 * band + 1):
            arrays[f"{PREFIX}SH_DEGREE_{band}_COEF_{k}"] = scene.sh[:, band * band + k]
    return arrays
