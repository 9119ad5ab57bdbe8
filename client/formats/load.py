"""Detects the format of a scene file, and reads or writes it."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike, fspath
from pathlib import Path

import numpy as np

from lumigrad.client.errors import InvalidArgument
from lumigrad.client.formats.compressed_ply import holds_packed_gaussians, read_compressed_ply
from lumigrad.client.formats.inria_ply import holds_gaussians, read_inria_ply, write_inria_ply
from lumigrad.client.formats.ksplat import looks_like_ksplat, read_ksplat
from lumigrad.client.formats.ply_header import PlyHeader
from lumigrad.client.formats.sample import located
from lumigrad.client.formats.scene import StoredScene
from lumigrad.client.formats.sog import META_NAME, ZIP_MAGIC, read_sog
from lumigrad.client.formats.source import Source, malformed
from lumigrad.client.formats.splat import read_splat, write_splat
from lumigrad.client.formats.spz import GZIP_MAGIC, MAGIC, read_spz, write_spz
from lumigrad.client.values.gaussians import Gaussians

_PLY_MAGIC = b"ply"
_WRITERS: dict[str, Callable[[StoredScene, str | PathLike[str]], None]] = {
    ".ply": write_inria_ply,
    ".splat": write_splat,
    ".spz": write_spz,
}
_READABLE = ".ply, .compressed.ply, .splat, .spz, .ksplat, .sog, or the meta.json of an unbundled .sog"


def load_gaussians(path: str | PathLike[str], *, skip_invalid: bool = False) -> Gaussians:
    """Reads Gaussians from a file of any format; see `read_scene`."""
    return read_scene(path, skip_invalid=skip_invalid).gaussians()


def read_scene(path: str | PathLike[str], *, skip_invalid: bool = False) -> StoredScene:
    """Reads a scene file: Inria's .ply, .compressed.ply, .splat, .spz, .ksplat, .sog, or a folder of an unbundled .sog.

    The format is detected by content, or by name for .splat and .ksplat.

    Args:
        path: the file; "sample:vase" is a scene in the package.
        skip_invalid: skip invalid Gaussians instead of rejecting the file.

    Raises:
        InvalidArgument: another kind of file, or a damaged one; names the file and the invalid place.
    """
    path = located(path)
    # NumPy would warn of invalid numbers in damaged files; the results are checked below.
    with np.errstate(all="ignore"):
        scene = _read(path)
    invalid = scene.invalid()
    if not invalid:
        return scene
    skipped = np.logical_or.reduce(list(invalid.values()))
    if skip_invalid:
        return scene.keep(~skipped)
    raise malformed(
        path,
        f"expected finite numbers, but {skipped.sum():,} of {len(scene):,} Gaussians have invalid "
        f"{', '.join(invalid)}, the first is number {int(skipped.argmax()):,}; skip_invalid=True leaves them out",
    )


def save_gaussians(gaussians: Gaussians, path: str | PathLike[str], *, antialiased: bool = False) -> None:
    """Writes Gaussians as .ply (Inria's), .spz (version 4) or .splat, by the suffix.

    Only .ply keeps full float32; docs/formats.md lists what the others lose.

    Args:
        gaussians: one scene with quats and scales and 3 colour channels.
        path: the file.
        antialiased: record that the scene was trained with antialiasing; .splat cannot.
    """
    writer = _WRITERS.get(Path(path).suffix.lower())
    if writer is None or Path(path).name.lower().endswith(".compressed.ply"):
        raise InvalidArgument.of(
            "path",
            f"expected a name that ends in .ply, .spz or .splat, got {fspath(path)}; other formats are only read",
        )
    writer(StoredScene.of(gaussians, path, antialiased=antialiased), path)


def is_gaussian_scene(path: str | PathLike[str]) -> bool:
    """Whether `read_scene` reads a file: all except PLY files without Gaussians."""
    if not _start_of(Path(path)).startswith(_PLY_MAGIC):
        return True
    header = PlyHeader.read(path)
    return holds_packed_gaussians(header) or holds_gaussians(header)


def _start_of(path: Path) -> bytes:
    if path.is_dir():
        return b""
    with open(path, "rb") as file:
        return file.read(4)


def _read(path: Path) -> StoredScene:
    if path.is_dir():
        if not (path / META_NAME).is_file():
            raise malformed(path, f"expected a file, or a folder with a {META_NAME}")
        return read_sog(path / META_NAME)
    start = _start_of(path)
    if start.startswith(_PLY_MAGIC):
        return _read_ply(PlyHeader.read(path))
    if start == ZIP_MAGIC or path.suffix.lower() == ".json":
        return read_sog(path)
    return _read_binary(path, start)


def _read_ply(header: PlyHeader) -> StoredScene:
    if holds_packed_gaussians(header):
        return read_compressed_ply(header)
    if holds_gaussians(header):
        return read_inria_ply(header)
    raise header.fail(
        f"expected Gaussians (vertex properties f_dc_0, scale_0, rot_0, …), got {sorted(header.vertex_properties)}; "
        "Spheres.load reads points"
    )


def _read_binary(path: Path, start: bytes) -> StoredScene:
    suffix = path.suffix.lower()
    source = Source.open(path)
    if start == MAGIC or start.startswith(GZIP_MAGIC):
        return read_spz(source)
    if suffix == ".ksplat" or (suffix != ".splat" and looks_like_ksplat(source)):
        return read_ksplat(source)
    if suffix == ".splat":
        return read_splat(source)
    raise source.fail(f"expected a scene of Gaussians ({_READABLE}), but it starts with {start!r}")
