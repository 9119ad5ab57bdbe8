"""Reads scene files a part at a time, so that scenes may be larger than memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from lumigrad.client.base.cautions import said
from lumigrad.client.formats.inria_ply import gaussians_of, holds_gaussians
from lumigrad.client.formats.load import check_displayed, read_scene
from lumigrad.client.formats.ply_header import PlyHeader
from lumigrad.client.formats.sample import located
from lumigrad.client.formats.scene import StoredScene
from lumigrad.client.formats.sog import STREAM_NAME, StreamIndex, read_sog

# Gaussians per read.
_ROWS = 1 << 18
_PLY_MAGIC = b"ply"


@dataclass(frozen=True)
class Chunks:
    """The Gaussians of a scene file in parts; each iteration starts from the beginning.

    Gaussians that `StoredScene.invalid` reports are left out.

    Attributes:
        count: Gaussians in the file, including those that are left out.
        read: yields all parts.
    """

    count: int
    read: Callable[[], Iterator[StoredScene]]

    def __iter__(self) -> Iterator[StoredScene]:
        for chunk in self.read():
            with np.errstate(all="ignore"):
                invalid = chunk.invalid()
            yield chunk.keep(~np.logical_or.reduce(list(invalid.values()))) if invalid else chunk


def chunks_of(path: str | PathLike[str]) -> Chunks:
    """Opens a scene file to be read in parts.

    A .ply of Gaussians and streamed SOG are read in parts; files of other formats are read whole, then split.

    Args:
        path: the file, or a folder of streamed SOG.

    Raises:
        InvalidArgument: another kind of file, or a damaged one; names the file and the invalid place.
    """
    path = located(path)
    if path.is_dir() and (path / STREAM_NAME).is_file():
        path = path / STREAM_NAME
    if path.name == STREAM_NAME:
        return _of_streamed(StreamIndex(path))
    if path.is_file() and _is_ply(path) and holds_gaussians(header := PlyHeader.read(path)):
        return _of_ply(header)
    with said():
        scene = read_scene(path, skip_invalid=True)
    check_displayed(scene, path)
    return Chunks(len(scene) + scene.skipped, lambda: _cut(scene))


def _is_ply(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(len(_PLY_MAGIC)) == _PLY_MAGIC


def _of_ply(header: PlyHeader) -> Chunks:
    vertices = header.table("vertex", mapped=True)

    def rows(start: int) -> Any:
        if not isinstance(vertices, np.memmap):
            return vertices[start : start + _ROWS]
        count = min(_ROWS, len(vertices) - start)
        offset = vertices.offset + start * vertices.dtype.itemsize
        read = np.fromfile(header.path, vertices.dtype, count, offset=offset)
        if len(read) < count:
            raise header.fail(f"expected {len(vertices):,} vertices, but the file became shorter while it was read")
        return read

    def read() -> Iterator[StoredScene]:
        for start in range(0, len(vertices), _ROWS):
            with np.errstate(all="ignore"):
                yield gaussians_of(header, rows(start))

    return Chunks(len(vertices), read)


def _of_streamed(index: StreamIndex) -> Chunks:
    """Returns the finest level of streamed SOG, and its environment, a file at a time."""
    slices = np.array(list(index.slices(0)), np.int64).reshape(-1, 3)

    def read() -> Iterator[StoredScene]:
        for number in dict.fromkeys(slices[:, 0].tolist()):
            scene = read_sog(index.file(number))
            taken = np.zeros(len(scene), bool)
            for _, offset, count in slices[slices[:, 0] == number]:
                if offset + count > len(scene):
                    raise index.fail(
                        f"expected at most {len(scene):,} Gaussians of {index.names[number]}, "
                        f"got a slice that ends at {offset + count:,}"
                    )
                taken[offset : offset + count] = True
            yield from _cut(scene.reordered(taken))
        if index.environment is not None:
            yield from _cut(read_sog(index.environment))

    return Chunks(int(slices[:, 2].sum()), read)


def _cut(scene: StoredScene) -> Iterator[StoredScene]:
    for start in range(0, len(scene), _ROWS):
        yield scene.reordered(slice(start, start + _ROWS))
