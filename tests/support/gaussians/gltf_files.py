"""glTF files with Gaussians, built from the extension's text, and comparisons of what scenes look like."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lumigrad.client.formats import StoredScene
from support.gaussians.clouds import Cloud
from support.gaussians.colors import harmonics

NAME = "KHR_gaussian_splatting"
TYPES = {np.dtype(kind): number for kind, number in (("i1", 5120), ("u1", 5121), ("i2", 5122), ("u2", 5123))}
TYPES |= {np.dtype("u4"): 5125, np.dtype("f4"): 5126}
SHAPES = {1: "SCALAR", 3: "VEC3", 4: "VEC4"}
# Converts left, up, forward to right, down, forward.
HALF_TURN = np.diag([-1.0, -1.0, 1.0])


class Builder:
    """Collects buffer views, accessors, meshes and nodes; `json` may be changed before it is written."""

    def __init__(self) -> None:
        self.binary = b""
        self.json: dict[str, Any] = {"asset": {"version": "2.0"}, "extensionsUsed": [NAME], "scene": 0}
        self.json |= {"scenes": [{"nodes": []}], "nodes": [], "meshes": [], "accessors": [], "bufferViews": []}

    def view(self, content: bytes, **more: Any) -> int:
        self.binary += bytes(-len(self.binary) % 4)
        entry = {"buffer": 0, "byteOffset": len(self.binary), "byteLength": len(content), **more}
        self.json["bufferViews"].append(entry)
        self.binary += content
        return len(self.json["bufferViews"]) - 1

    def accessor(self, values: np.ndarray, **more: Any) -> int:
        values = values.reshape(len(values), -1)
        entry = {"componentType": TYPES[values.dtype], "count": len(values), "type": SHAPES[values.shape[1]], **more}
        if "bufferView" not in entry and "sparse" not in entry:
            entry["bufferView"] = self.view(values.tobytes())
        self.json["accessors"].append(entry)
        return len(self.json["accessors"]) - 1

    def primitive(self, cloud: Cloud, **attributes: int) -> dict[str, Any]:
        """A primitive of a cloud whose numbers are in glTF's axes; some attributes may be other accessors."""
        arrays = {"POSITION": cloud.means, f"{NAME}:ROTATION": cloud.quats[:, [1, 2, 3, 0]]}
        arrays |= {f"{NAME}:SCALE": cloud.scales, f"{NAME}:OPACITY": cloud.opacities}
        coefficients = [(band, k) for band in range(4) for k in range(2 * band + 1)][: cloud.sh.shape[1]]
        arrays |= {f"{NAME}:SH_DEGREE_{b}_COEF_{k}": cloud.sh[:, b * b + k] for b, k in coefficients}
        own = {name if name == "POSITION" else f"{NAME}:{name}": number for name, number in attributes.items()}
        made = {name: own.get(name, -1) for name in arrays}
        made = {name: self.accessor(arrays[name].astype("f4")) if k < 0 else k for name, k in made.items()}
        extension = {"kernel": "ellipse", "colorSpace": "srgb_rec709_display"}
        return {"mode": 0, "attributes": made, "extensions": {NAME: extension}}

    def mesh(self, *primitives: dict[str, Any]) -> int:
        self.json["meshes"].append({"primitives": list(primitives)})
        return len(self.json["meshes"]) - 1

    def node(self, root: bool = True, **values: Any) -> int:
        self.json["nodes"].append(values)
        if root:
            self.json["scenes"][0]["nodes"].append(len(self.json["nodes"]) - 1)
        return len(self.json["nodes"]) - 1

    def glb(self) -> bytes:
        binary = self.binary + bytes(-len(self.binary) % 4)
        self.json["buffers"] = [{"byteLength": len(self.binary)}]
        text = json.dumps(self.json).encode()
        text += b" " * (-len(text) % 4)
        header = struct.pack("<4sIIII", b"glTF", 2, 28 + len(text) + len(binary), len(text), 0x4E4F534A)
        return header + text + struct.pack("<II", len(binary), 0x004E4942) + binary

    def save(self, path: Path) -> Path:
        path.write_bytes(self.glb())
        return path


def lone(cloud: Cloud, **attributes: int) -> Builder:
    """A file with one node."""
    builder = Builder()
    builder.node(mesh=builder.mesh(builder.primitive(cloud, **attributes)))
    return builder


def matrices(quats: np.ndarray) -> np.ndarray:
    """[N, 3, 3] of unit quaternions (w, x, y, z), by rotating the axes."""
    w, vector = quats[:, :1, None], quats[:, None, 1:]
    axes = np.eye(3)[None]
    crossed = np.cross(vector, axes)
    return (axes + 2 * w * crossed + 2 * np.cross(vector, crossed)).transpose(0, 2, 1)


def covariances(quats: np.ndarray, scales: np.ndarray) -> np.ndarray:
    unit = quats.astype(float) / np.linalg.norm(quats.astype(float), axis=1, keepdims=True)
    axes = matrices(unit) * scales.astype(float)[:, None, :]
    return axes @ axes.transpose(0, 2, 1)


def assert_looks(read: StoredScene, made: Cloud, matrix: np.ndarray) -> None:
    """Compares a scene with a cloud under an affine transform: positions, covariances, and colours from all sides."""
    linear = matrix[:3, :3]
    np.testing.assert_allclose(read.means, made.means @ linear.T + matrix[:3, 3], rtol=1e-5, atol=1e-5)
    expected = linear @ covariances(made.quats, made.scales) @ linear.T
    size = np.abs(expected).max(axis=(1, 2), keepdims=True) + 1e-12
    np.testing.assert_allclose(covariances(read.quats, read.scales) / size, expected / size, atol=1e-5)
    np.testing.assert_allclose(read.opacities, made.opacities, atol=1e-7)
    directions = np.random.default_rng(5).normal(size=(40, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    left, _, right = np.linalg.svd(linear)
    # A direction in the scene is this one before the turn.
    before = directions @ (left @ right)
    np.testing.assert_allclose(colors(read.sh, directions), colors(made.sh, before), atol=2e-5)


def colors(sh: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """[N, M, 3] the colours of coefficients from M directions."""
    basis = harmonics(math.isqrt(sh.shape[1]) - 1, torch.tensor(directions)).numpy()
    return np.einsum("mk,nkc->nmc", basis, sh.astype(float))
