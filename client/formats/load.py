"""Detects the format of a scene file, and reads it."""

from __future__ import annotations

from os import PathLike, fspath
from pathlib import Path

import numpy as np

from lumigrad.client.base.cautions import warn_of
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.formats.compressed_ply import holds_packed_gaussians, read_compressed_ply
from lumigrad.client.formats.gltf import GLB_MAGIC, read_gltf
from lumigrad.client.formats.inria_ply import holds_gaussians, looks_like_gaussians, read_inria_ply
from lumigrad.client.formats.ksplat import looks_like_ksplat, read_ksplat
from lumigrad.client.formats.ply_header import PlyHeader
from lumigrad.client.formats.rad import CHUNK_MAGIC, FILE_MAGIC, read_rad
from lumigrad.client.formats.sample import located
from lumigrad.client.formats.scene import SRGB, StoredScene
from lumigrad.client.formats.sog import META_NAME, STREAM_NAME, ZIP_MAGIC, read_sog, read_streamed_sog
from lumigrad.client.formats.source import Source, malformed, shortened
from lumigrad.client.formats.splat import read_splat
from lumigrad.client.formats.spz import GZIP_MAGIC, MAGIC, read_spz
from lumigrad.client.formats.usd import looks_like_usd, read_usd
from lumigrad.client.values.gaussians import Gaussians

_PLY_MAGIC = b"ply"
_MESHES = (".obj", ".stl")
_LONGEST_MAGIC = 8
_READABLE = (
    ".ply, .compressed.ply, .splat, .spz, .ksplat, .rad, .glb, .gltf, .usd, .usda, .usdc, .usdz, .sog, the meta.json "
    "of an unbundled .sog, or a lod-meta.json"
)


def load_gaussians(path: str | PathLike[str], *, skip_invalid: bool = False, lod: int | None = None) -> Gaussians:
    """Reads Gaussians from a file of any format; see `read_scene`.

    Args:
        path: see `read_scene`.
        skip_invalid: see `read_scene`.
        lod: see `read_scene`.

    Raises:
        InvalidArgument: as `read_scene`, or the scene blends linear light, see `StoredScene.color_space`.

    Example:
        gaussians = load_gaussians(folder / "scene.ply")
    """
    scene = read_scene(path, skip_invalid=skip_invalid, lod=lod)
    check_displayed(scene, path)
    return scene.gaussians()


def check_displayed(scene: StoredScene, path: str | PathLike[str]) -> None:
    """Raises InvalidArgument for a scene whose pictures are linear light, which would be shown too dark.

    Args:
        scene: the scene.
        path: its file, for the error.

    Raises:
        InvalidArgument: the colours are linear light.

    Example:
        check_displayed(read_scene(folder / "scene.ply"), folder / "scene.ply")
    """
    if scene.color_space != SRGB:
        raise malformed(
            path,
            f"expected colours as displayed ({SRGB}), got {scene.color_space}: pictures of it are linear light; "
            "read_scene(path).gaussians() returns it, and what is rendered has to be encoded before it is shown",
        )


def read_scene(path: str | PathLike[str], *, skip_invalid: bool = False, lod: int | None = None) -> StoredScene:
    """Reads a scene file of any of the formats that docs/formats.md lists, or the folder of an unbundled .sog.

    The format is detected by content, or by name for .splat and .ksplat.

    Args:
        path: the file; "sample:vase" is a scene in the package.
        skip_invalid: skip invalid Gaussians instead of rejecting the file.
        lod: level of detail of a streamed .sog, 0 for the finest, which is the default.

    Raises:
        InvalidArgument: another kind of file, or a damaged one; names the file and the invalid place.
        MissingPackage: the format needs a package that is not installed; names the extra that brings it.

    Example:
        stored = read_scene(folder / "scene.ply", skip_invalid=True)
        gaussians = stored.gaussians()
    """
    path = located(path)
    # NumPy would warn of invalid numbers in damaged files; the results are checked below.
    with np.errstate(all="ignore"):
        scene = _read(path, lod)
    _check_activated(path, scene)
    invalid = scene.invalid()
    skipped = np.logical_or.reduce(list(invalid.values())) if invalid else np.zeros(len(scene), bool)
    if invalid and skip_invalid:
        scene = scene.keep(~skipped)
    if not invalid or skip_invalid:
        warn_of(fspath(path), scene.lost)
        return scene
    raise malformed(
        path,
        f"expected finite numbers, but {skipped.sum():,} of {len(scene):,} Gaussians have invalid "
        f"{', '.join(invalid)}, the first is number {int(skipped.argmax()):,}; skip_invalid=True leaves them out",
    )


def _check_activated(path: Path, scene: StoredScene) -> None:
    """Raises InvalidArgument if most scales or opacities are out of range: training damages few of them."""
    outside = {
        "scales >= 0": ((scene.scales < 0).any(axis=1), "logarithms"),
        "opacities from 0 to 1": ((scene.opacities < 0) | (scene.opacities > 1), "logits"),
    }
    for expected, (rows, meant) in outside.items():
        if 2 * rows.sum() > len(scene):
            text = f"expected {expected}, but those of {rows.sum():,} of {len(scene):,} Gaussians are not"
            raise malformed(path, f"{text}; if they are {meant}, which this format does not have, export it anew")


def is_gaussian_scene(path: str | PathLike[str]) -> bool:
    """Whether `read_scene` reads a file: all except PLY files without Gaussians.

    Args:
        path: the file or folder.

    Raises:
        InvalidArgument: a damaged PLY file.

    Example:
        assert is_gaussian_scene(folder / "scene.ply")
    """
    if not _start_of(Path(path)).startswith(_PLY_MAGIC):
        return True
    header = PlyHeader.read(path)
    return holds_packed_gaussians(header) or looks_like_gaussians(header)


def _start_of(path: Path) -> bytes:
    if path.is_dir():
        return b""
    with open(path, "rb") as file:
        return file.read(_LONGEST_MAGIC)


def _read(path: Path, lod: int | None) -> StoredScene:
    if path.is_dir():
        path = next((path / name for name in (META_NAME, STREAM_NAME) if (path / name).is_file()), path)
    if path.is_dir():
        raise malformed(path, f"expected a file, or a folder with a {META_NAME} or {STREAM_NAME}")
    if path.name == STREAM_NAME:
        return read_streamed_sog(path, lod or 0)
    if lod is not None:
        text = f"expected a {STREAM_NAME} with it, got {shortened(fspath(path))}, which has one level of detail"
        raise InvalidArgument.of("lod", f"{text}; leave it out")
    start, suffix = _start_of(path), path.suffix.lower()
    if start.startswith(_PLY_MAGIC):
        return _read_ply(PlyHeader.read(path))
    if start.startswith(GLB_MAGIC) or suffix == ".gltf":
        return read_gltf(path)
    if looks_like_usd(start, path):
        return read_usd(path)
    if start.startswith(ZIP_MAGIC) and suffix == ".npz":
        raise malformed(
            path, f"expected a scene of Gaussians ({_READABLE}), got arrays of NumPy, which are no scene file"
        )
    if start.startswith(ZIP_MAGIC) or suffix == ".json":
        return read_sog(path)
    return _read_binary(path, start)


def _read_ply(header: PlyHeader) -> StoredScene:
    if holds_packed_gaussians(header):
        return read_compressed_ply(header)
    if holds_gaussians(header):
        return read_inria_ply(header)
    if "face" in header.elements and header.elements["face"].count and not looks_like_gaussians(header):
        raise _mesh(header.path)
    raise header.fail(
        f"expected Gaussians (vertex properties f_dc_0, scale_0, rot_0, …), got {sorted(header.vertex_properties)}; "
        "Spheres.load reads points"
    )


def _read_binary(path: Path, start: bytes) -> StoredScene:
    suffix = path.suffix.lower()
    source = Source.open(path)
    if start.startswith((MAGIC, GZIP_MAGIC)):
        return read_spz(source)
    if start.startswith((FILE_MAGIC, CHUNK_MAGIC)):
        return read_rad(source)
    if suffix == ".ksplat" or (suffix != ".splat" and looks_like_ksplat(source)):
        return read_ksplat(source)
    if suffix == ".splat":
        return read_splat(source)
    if suffix in _MESHES:
        raise _mesh(path)
    raise source.fail(f"expected a scene of Gaussians ({_READABLE}), but it starts with {start[:4]!r}")


def _mesh(path: Path) -> InvalidArgument:
    """Returns the error for a mesh."""
    said = f"expected a scene of Gaussians, got a mesh; `lumigrad query {path} --spheres FILE` measures distances"
    return malformed(path, f"{said} from it, and Mesh.load reads it")
