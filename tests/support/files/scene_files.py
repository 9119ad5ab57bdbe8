"""A small file of each scene format, and a reader that accepts only scenes and typed errors."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from lumigrad.client import Gaussians, InvalidArgument
from lumigrad.client.formats import StoredScene, read_scene
from lumigrad.client.formats.gltf import write_glb, write_gltf
from lumigrad.client.formats.splat import write_splat
from lumigrad.client.formats.spz import write_spz
from support.files.rad import rad_content
from support.gaussians.clouds import cloud
from support.gaussians.files import spz_content, write_compressed_ply, write_ksplat, write_sog

FORMATS = ("scene.ply", "text.ply", "scene.compressed.ply", "scene.splat", "scene.spz", "old.spz", "raw.spz")
FORMATS += ("scene.ksplat", "scene.sog", "scene.glb", "scene.gltf", "scene.rad")


@cache
def good(name: str, folder: Path) -> bytes:
    """The bytes of a small file of a format."""
    made, path = cloud(count=40, degree=1), folder / "good" / name
    path.parent.mkdir(exist_ok=True)
    Gaussians(made.means, made.quats, made.scales, made.opacities, sh=made.sh).save(folder / "good" / "whole.ply")
    scene = read_scene(folder / "good" / "whole.ply")
    writers: dict[str, Callable[[], object]] = {
        "scene.ply": lambda: Gaussians.load(folder / "good" / "whole.ply").save(path),
        "text.ply": lambda: path.write_bytes(in_text((folder / "good" / "whole.ply").read_bytes())),
        "scene.compressed.ply": lambda: write_compressed_ply(path, made),
        "scene.splat": lambda: write_splat(scene, path),
        "scene.spz": lambda: write_spz(scene, path),
        "old.spz": lambda: path.write_bytes(gzip.compress(spz_content(made, 2))),
        "raw.spz": lambda: path.write_bytes(spz_content(made, 3)),
        "scene.ksplat": lambda: write_ksplat(path, [made, made], 2, capacity=16),
        "scene.rad": lambda: path.write_bytes(rad_content(made)),
        "scene.sog": lambda: write_sog(path, made),
        "scene.glb": lambda: write_glb(scene, path),
        "scene.gltf": lambda: path.write_bytes(with_data_uri(scene, path)),
    }
    writers[name]()
    return path.read_bytes()


def with_data_uri(scene: StoredScene, path: Path) -> bytes:
    """A glTF file with embedded buffers, so that damage also hits the numbers."""
    write_gltf(scene, path)
    content = base64.b64encode(path.with_suffix(".bin").read_bytes())
    return path.read_bytes().rstrip().replace(b"scene.bin", b"data:;base64," + content)


def in_text(binary: bytes) -> bytes:
    """Converts a binary PLY file of floats to a text one."""
    header, end, body = binary.partition(b"end_header\n")
    width = header.count(b"property float")
    rows = np.frombuffer(body, "<f4").reshape(-1, width)
    text = "\n".join(" ".join(f"{value:.9g}" for value in row) for row in rows)
    return header.replace(b"binary_little_endian", b"ascii") + end + text.encode()


def read(path: Path, content: bytes) -> StoredScene | None:
    """Read a scene; None if the file is refused with a typed error. Any other exception fails the test."""
    path.write_bytes(content)
    try:
        scene = read_scene(path, skip_invalid=True)
    except InvalidArgument as error:
        assert str(error).startswith(f"path: {path}: ")
        assert len(str(error)) < 1000
        return None
    scene.gaussians()
    return scene
