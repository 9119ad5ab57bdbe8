"""Reads pages and levels from the files of streamed SOG."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lumigrad.client.base.arguments import file_path
from lumigrad.client.base.arrays import Float32, Float64
from lumigrad.client.formats.scene import StoredScene
from lumigrad.client.formats.sog import STREAM_NAME, StreamIndex, read_sog
from lumigrad.client.formats.sog.files import SogFiles
from lumigrad.client.formats.sog.meta import SogMeta
from lumigrad.client.formats.source import malformed
from lumigrad.client.values.gaussians import Gaussians

# The key, in leaves and in the index, of entries that only Lumigrad reads.
OWN = "lumigrad"
# Size of the cache of decoded files in bytes; coarse levels of many pages share a file.
_KEPT_BYTES = 256 << 20
# Estimates the errors of other programs' levels: in levels that Lumigrad built, errors were about this fraction of a
# page's diagonal divided by the root of the number of Gaussians.
_ERROR_PER_SPACING = 0.55
# The workers' limits on levels and on the degree of harmonics: a damaged index must not ask for more memory.
_MOST_LEVELS, _MOST_DEGREE = 64, 4
_MOST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, eq=False)
class PageFiles:
    """The places of the levels of each page, and a cache of decoded files.

    Attributes:
        bounds: see `GaussianLevels`, as are `counts`, `errors`, `sh_degree` and `antialiased`.
        places: [P, L, 3] file, first Gaussian, number of Gaussians.
        files: the meta.json of each file.
    """

    bounds: Float32
    errors: Float32
    places: npt.NDArray[np.int64]
    files: list[Path]
    sh_degree: int
    antialiased: bool
    _kept: OrderedDict[int, StoredScene] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @staticmethod
    def open(path: str | PathLike[str]) -> PageFiles:
        """Reads the index of a folder or lod-meta.json."""
        path = file_path("path", path)
        path = path / STREAM_NAME if (path / STREAM_NAME).is_file() else path
        if path.name != STREAM_NAME and path.exists():
            raise malformed(path, f"expected a folder with a {STREAM_NAME}; `lumigrad convert --levels` writes one")
        index = StreamIndex(path)
        if not 1 <= index.levels <= _MOST_LEVELS:
            raise index.fail(f"expected 1 to {_MOST_LEVELS} levels in lodLevels, got {index.levels}")
        leaves = list(index.leaves())
        places = np.array([[index.slice_of(leaf, level) for level in range(index.levels)] for leaf in leaves], np.int64)
        places = places.reshape(len(leaves), index.levels, 3)
        used = np.flatnonzero(places[..., 2].any(axis=1))
        leaves, places = [leaves[leaf] for leaf in used], places[used]
        files = [index.file(number) for number in range(len(index.names))]
        own = index.extra(OWN)
        if own is not None and all(OWN in leaf for leaf in leaves):
            bounds, errors = _stated(index, leaves)
            degree, antialiased = index.integer(own.get("shDegree"), "shDegree"), own.get("antialiased") is True
            if degree > _MOST_DEGREE:
                raise index.fail(f"expected a degree of at most {_MOST_DEGREE} in shDegree, got {degree}")
        else:
            bounds, errors, degree, antialiased, places = _estimated(index, leaves, places, files)
        if not len(places):
            raise index.fail("expected at least one leaf with Gaussians, got none")
        return PageFiles(bounds, errors, places, files, degree, antialiased)

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """The rows of each level, see `GaussianLevels`."""
        return self.places[..., 2]

    def read(self, page: int, level: int) -> Gaussians:
        """Reads one level of a page."""
        file, start, count = (int(value) for value in self.places[page, level])
        scene = self._decoded(file)
        if start + count > len(scene):
            raise malformed(
                self.files[file],
                f"expected at least {start + count:,} Gaussians, as its {STREAM_NAME} says, got {len(scene):,}",
            )
        return scene.reordered(slice(start, start + count)).of_degree(self.sh_degree).gaussians()

    def _decoded(self, file: int) -> StoredScene:
        with self._lock:
            if file in self._kept:
                self._kept.move_to_end(file)
                return self._kept[file]
        # Files are decoded in parallel; if two threads decode the same file, only time is lost.
        scene = read_sog(self.files[file])
        with self._lock:
            self._kept[file] = scene
            while len(self._kept) > 1 and sum(map(_bytes_of, self._kept.values())) > _KEPT_BYTES:
                self._kept.popitem(last=False)
        return scene


def _bytes_of(scene: StoredScene) -> int:
    return scene.sh.nbytes + len(scene) * 44


def _stated(index: StreamIndex, leaves: list[dict[str, Any]]) -> tuple[Float32, Float32]:
    """Returns bounds and errors of the leaves that Lumigrad wrote."""
    owns = [index.object(leaf[OWN], OWN) for leaf in leaves]
    bounds = np.array([_boxes(index, own) for own in owns]).reshape(-1, index.levels, 2, 3)
    if (np.diff(bounds[:, :, 0], axis=1) > 0).any() or (np.diff(bounds[:, :, 1], axis=1) < 0).any():
        raise index.fail("expected bounds that contain those of finer levels")
    errors = np.array([_numbers(index, own.get("errors"), index.levels, "errors") for own in owns])
    if (np.diff(errors, axis=1) < 0).any() or errors.min(initial=0.0) < 0:
        raise index.fail("expected errors that grow with the level, from 0")
    return bounds.astype(np.float32), errors.astype(np.float32)


def _estimated(
    index: StreamIndex, leaves: list[dict[str, Any]], places: npt.NDArray[np.int64], files: list[Path]
) -> tuple[Float32, Float32, int, bool, npt.NDArray[np.int64]]:
    """Returns bounds, errors, degree, antialiasing and places for files of another program.

    Its boxes contain one standard deviation of the Gaussians of all levels, so the largest deviation of the files of a
    level, and of finer ones, is added twice. The environment, which is always shown, becomes a page that has one level.
    """
    metas = [_FileMeta.read(file) for file in (*files, *([] if index.environment is None else [index.environment]))]
    boxes = np.array([_box(index, leaf.get("bound")) for leaf in leaves]).reshape(-1, 2, 3)
    deviations = np.array([meta.deviation for meta in metas])
    largest = np.maximum.accumulate(deviations[places[..., 0]], axis=1)
    # No deviation is larger than half of a side of the box that contains it.
    wider = 2.0 * np.minimum(largest[..., None], (boxes[:, None, 1] - boxes[:, None, 0]) / 2.0)
    bounds = np.stack([boxes[:, None, 0] - wider, boxes[:, None, 1] + wider], axis=2)
    diagonals = np.linalg.norm(boxes[:, 1] - boxes[:, 0], axis=1)
    spacings = diagonals[:, None] / np.sqrt(np.maximum(places[..., 2], 1))
    errors = np.where(places[..., 2] == places[:, :1, 2], 0.0, _ERROR_PER_SPACING * spacings)
    errors = np.maximum.accumulate(errors, axis=1)
    if index.environment is not None:
        sky = metas[-1]
        files.append(index.environment)
        place = np.broadcast_to([len(files) - 1, 0, sky.count], (1, index.levels, 3))
        places, errors = np.concatenate([places, place]), np.concatenate([errors, np.zeros((1, index.levels))])
        bounds = np.concatenate([bounds, np.broadcast_to(sky.box, (1, index.levels, 2, 3))])
    degree, antialiased = max(meta.degree for meta in metas), all(meta.antialiased for meta in metas)
    return bounds.astype(np.float32), errors.astype(np.float32), degree, antialiased, places


@dataclass(frozen=True)
class _FileMeta:
    """Facts that a meta.json states about all Gaussians of its file."""

    count: int
    degree: int
    antialiased: bool
    deviation: float
    box: Float64

    @staticmethod
    def read(path: Path) -> _FileMeta:
        with closing(SogFiles(path)) as files:
            meta = SogMeta(files.meta(), files.fail)
            if meta.version == 1:
                raise files.fail("expected version 2, got 1, whose levels cannot be read one by one; convert it")
            low, high = (np.array([meta.between("means", axis, np.array(end)) for axis in range(3)]) for end in (0, 1))
            deviation = math.exp(min(float(meta.decode("scales", np.arange(256)).max()), 80.0))
            corners = np.sign([low, high]) * np.expm1(np.abs([low, high]))
            box = corners + np.array([[-1.0], [1.0]]) * 3.0 * deviation
            return _FileMeta(meta.count, meta.degree(0) if meta.has("shN") else 0, meta.antialiased, deviation, box)


def _boxes(index: StreamIndex, own: Mapping[str, Any]) -> list[list[list[float]]]:
    """Returns the bounds of all levels of a leaf; a single `bound` applies to all levels."""
    if "bounds" not in own:
        return [_box(index, own.get("bound"))] * index.levels
    boxes = own["bounds"]
    if not isinstance(boxes, list) or len(boxes) != index.levels:
        raise index.fail(f"expected a list of {index.levels} boxes in bounds, got {boxes!r}")
    return [_box(index, box) for box in boxes]


def _box(index: StreamIndex, value: Any) -> list[list[float]]:
    box: Mapping[str, Any] = index.object(value, "bound")
    low, high = (_numbers(index, box.get(end), 3, f"bound.{end}") for end in ("min", "max"))
    if any(least > most for least, most in zip(low, high, strict=True)):
        raise index.fail(f"expected bounds with bound.min at most bound.max, got {low} and {high}")
    return [low, high]


def _numbers(index: StreamIndex, value: Any, count: int, name: str) -> list[float]:
    are_numbers = isinstance(value, list) and all(isinstance(each, (int, float)) for each in value)
    # Rejects NaN and numbers beyond float32.
    if not are_numbers or len(value) != count or not all(abs(each) <= _MOST for each in value):
        raise index.fail(f"expected {count} numbers in {name}, got {value!r}")
    return [float(each) for each in value]
