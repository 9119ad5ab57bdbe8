"""Reads streamed SOG: a lod-meta.json with a tree of boxes, whose Gaussians lie in SOG folders, one for each level."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lumigrad.client.errors import InvalidArgument
from lumigrad.client.formats.scene import StoredScene, joined
from lumigrad.client.formats.sog.files import META_NAME, SogFiles
from lumigrad.client.formats.sog.read import read_sog
from lumigrad.client.formats.source import check_growth, malformed

STREAM_NAME = "lod-meta.json"
_VERSION = 1
_LARGEST_TREE = 256 << 20
_DEEPEST = 64
# Digits of a level's number.
_LONGEST_LEVEL = 6
# Bytes in memory; harmonics add up to four times as much.
_BYTES_PER_GAUSSIAN = 56
# The largest count or offset, which keeps sums within 64 bits.
_LARGEST_COUNT = 1 << 40
Json = dict[str, Any]
Integers = npt.NDArray[np.int64]
# File, offset, count.
Slice = tuple[int, int, int]


def read_streamed_sog(path: Path, lod: int = 0) -> StoredScene:
    """Reads one level of detail of a whole scene, and its environment, which is always shown.

    Where a box lacks the level, the next coarser one that it has is read, else the next finer one.

    Args:
        path: the lod-meta.json.
        lod: the level; 0 is the finest.
    """
    tree = StreamIndex(path)
    slices = np.array(list(tree.slices(lod)), np.int64).reshape(-1, 3)
    used = {number: tree.file(number) for number in dict.fromkeys(slices[:, 0].tolist())}
    metas = [*used.values(), *([] if tree.environment is None else [tree.environment])]
    _check_growth(path, metas, int(slices[:, 2].sum()))
    scenes, places = [], []
    starts = np.cumsum(slices[:, 2]) - slices[:, 2]
    for number, meta in used.items():
        scene, mine = read_sog(meta), slices[:, 0] == number
        _, offsets, counts = slices[mine].T
        if (offsets + counts).max() > len(scene):
            raise tree.fail(
                f"expected at most {len(scene):,} Gaussians of {tree.names[number]}, "
                f"got a slice that ends at {(offsets + counts).max():,}"
            )
        scenes.append(scene.reordered(_ranges(offsets, counts)))
        places.append(_ranges(starts[mine], counts))
    if scenes:
        scenes = [joined(scenes).reordered(np.argsort(np.concatenate(places)))]
    if tree.environment is not None:
        scenes.append(read_sog(tree.environment))
    if not scenes:
        raise tree.fail(f"expected Gaussians of level {lod}, got none")
    details = {"format": "streamed SOG", "lod": lod, "lods": tree.levels}
    return replace(joined(scenes), details=details)


class StreamIndex:
    """The content of a lod-meta.json.

    Attributes:
        path: the file.
        levels: the number of levels.
        names: paths of the meta.json files, as written.
        environment: the meta.json of Gaussians that are always shown; None if there are none.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._folder = path, path.parent.resolve()
        if path.stat().st_size > _LARGEST_TREE:
            raise self.fail(f"expected at most {_LARGEST_TREE:,} bytes, got {path.stat().st_size:,}")
        try:
            values = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise self.fail(f"expected JSON: {error}") from error
        self._values = self.object(values, "the file")
        version = self._values.get("version", _VERSION)
        if version != _VERSION:
            raise self.fail(f"expected version {_VERSION}, got {version!r}")
        self.levels = self.integer(self._values.get("lodLevels"), "lodLevels")
        names = self._values.get("filenames")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise self.fail("expected a list of paths in filenames")
        self.names: list[str] = names
        environment = self._values.get("environment")
        self.environment = None if environment is None else self._inside(environment, "environment")

    def fail(self, description: str) -> InvalidArgument:
        """Returns the error to raise about this scene."""
        return malformed(self.path, description)

    def file(self, index: int) -> Path:
        """Returns the path of a meta.json."""
        return self._inside(self.names[index], f"filenames[{index}]")

    def slices(self, lod: int) -> Iterator[Slice]:
        """Yields the slice of each leaf of the tree that holds Gaussians."""
        if not 0 <= lod < self.levels:
            text = f"expected a level of detail from 0, the finest, to {self.levels - 1} in {self.path}, got {lod}"
            raise InvalidArgument.of("lod", text)
        found = (self.slice_of(leaf, lod) for leaf in self.leaves())
        return (each for each in found if each[2])

    def leaves(self) -> Iterator[Json]:
        """Yields the leaves of the tree in order."""
        stack = [(self._values.get("tree"), 0)]
        while stack:
            value, depth = stack.pop()
            node = self.object(value, "a node of the tree")
            if depth > _DEEPEST:
                raise self.fail(f"expected a tree of at most {_DEEPEST} levels of nodes")
            children = node.get("children")
            if isinstance(children, list):
                stack += [(child, depth + 1) for child in reversed(children)]
                continue
            yield node

    def slice_of(self, leaf: Json, lod: int) -> Slice:
        """Returns the slice of a leaf's Gaussians that a level shows; its count is 0 if there are none."""
        lods = self.object(leaf.get("lods"), "lods of a leaf")
        levels = [int(name) for name in lods if name.isdecimal() and len(name) <= _LONGEST_LEVEL]
        if not levels:
            return 0, 0, 0
        level = min(levels, key=lambda level: (level < lod, abs(level - lod)))
        entry = self.object(lods.get(str(level)), "a level of a leaf")
        file, offset, count = (self.integer(entry.get(name), name) for name in ("file", "offset", "count"))
        if file >= len(self.names):
            raise self.fail(f"expected a file below {len(self.names)}, the number of filenames, got {file}")
        return file, offset, count

    def _inside(self, name: Any, where: str) -> Path:
        """Returns the path of a meta.json below the folder of this file."""
        if not isinstance(name, str) or "\0" in name:
            raise self.fail(f"expected a path in {where}, got {name!r}")
        path = (self._folder / name).resolve()
        if self._folder not in path.parents or path.suffix != ".json":
            raise self.fail(f"expected the path of a {META_NAME} below this file's folder in {where}, got {name!r}")
        if not path.is_file():
            raise self.fail(f"expected a file {name} for {where}; there is none")
        return path

    def extra(self, name: str) -> Json | None:
        """Returns a program-specific object of the file; None if it is absent."""
        value = self._values.get(name)
        return value if isinstance(value, dict) else None

    def object(self, value: Any, what: str) -> Json:
        """Returns a value; raises InvalidArgument unless it is an object."""
        if not isinstance(value, dict):
            raise self.fail(f"expected an object for {what}, got {type(value).__name__}")
        return value

    def integer(self, value: Any, name: str) -> int:
        """Returns a value; raises InvalidArgument unless it is a count."""
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST_COUNT:
            raise self.fail(f"expected an integer from 0 to {_LARGEST_COUNT:,} in {name}, got {value!r}")
        return value


def _check_growth(path: Path, metas: list[Path], count: int) -> None:
    """Raises InvalidArgument if the leaves together have implausibly many Gaussians."""
    stored = path.stat().st_size
    for meta in metas:
        with closing(SogFiles(meta)) as files:
            stored += files.stored_bytes()
    check_growth(path, stored, count * _BYTES_PER_GAUSSIAN)


def _ranges(starts: Integers, counts: Integers) -> Integers:
    """Returns the integers of all ranges of `counts` numbers from `starts`, one range after the other."""
    before = np.cumsum(counts) - counts
    return np.repeat(starts - before, counts) + np.arange(counts.sum())
