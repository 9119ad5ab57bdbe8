"""Writes pages with their levels as streamed SOG: files of neighbouring pages, one level each, and their index."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from lumigrad.client.formats.levels.coarsening import Page
from lumigrad.client.formats.levels.opening import OWN
from lumigrad.client.formats.levels.ordering import PAGE_ROWS
from lumigrad.client.formats.scene import StoredScene, joined
from lumigrad.client.formats.sog import META_NAME, STREAM_NAME, sog_files

# Largest palette of harmonics per file.
_PALETTE = 8192
Json = dict[str, Any]


class Units:
    """Files of one scene that is written page by page.

    A file holds one level of neighbouring pages, at most `PAGE_ROWS` Gaussians: one or two pages at level 0, and four
    times as many at each next level.

    Attributes:
        folder: where the files go.
        later: calls a function, perhaps in another thread.
    """

    def __init__(self, folder: Path, later: Callable[[Callable[[], None]], None]) -> None:
        self.folder, self.later = folder, later
        self._names: list[str] = []
        self._leaves: list[tuple[Page, list[Json]]] = []
        # The number of the file that is being filled, and its Gaussians, by level.
        self._open: dict[int, tuple[int, list[StoredScene]]] = {}
        self._files_of: dict[int, int] = {}

    def add(self, page: Page) -> None:
        """Adds the next page along the curve."""
        lods: list[Json] = []
        for level, scene in enumerate(page.levels):
            if level and scene is page.levels[level - 1]:
                # A page of one Gaussian has no coarser level.
                lods.append(lods[-1])
            else:
                lods.append(self._place(level, scene))
        self._leaves.append((Page([], page.errors, page.bounds, page.core), lods))

    def finish(self, degree: int, antialiased: bool) -> int:
        """Writes the files that are not full, and the index; returns the number of levels that some page needs."""
        for level in list(self._open):
            self._write(level)
        levels = max(_used(lods) for _, lods in self._leaves)
        leaves = [_leaf(page, lods[:levels]) for page, lods in self._leaves]
        counts = [sum(leaf["lods"][str(level)]["count"] for leaf in leaves) for level in range(levels)]
        index = {
            "version": 1,
            "asset": {"generator": "Lumigrad"},
            "count": sum(counts),
            "counts": counts,
            "lodLevels": levels,
            # Other programs' errors are fractions of a picture, not lengths.
            "lodErrors": False,
            OWN: {"shDegree": degree, "antialiased": antialiased},
            "filenames": self._names,
            "tree": _tree(leaves),
        }
        (self.folder / STREAM_NAME).write_text(json.dumps(index, separators=(",", ":")), encoding="utf-8")
        return levels

    def _place(self, level: int, scene: StoredScene) -> Json:
        """Adds Gaussians to the open file of their level; returns their index entry."""
        if level in self._open and sum(map(len, self._open[level][1])) + len(scene) > PAGE_ROWS:
            self._write(level)
        if level not in self._open:
            number = self._files_of[level] = self._files_of.get(level, -1) + 1
            self._open[level] = len(self._names), []
            self._names.append(f"{level}_{number}/{META_NAME}")
        file, scenes = self._open[level]
        entry = {"file": file, "offset": sum(map(len, scenes)), "count": len(scene)}
        scenes.append(scene)
        return entry

    def _write(self, level: int) -> None:
        file, scenes = self._open.pop(level)
        folder = (self.folder / self._names[file]).parent

        def write() -> None:
            contents = sog_files(joined(scenes), _PALETTE)
            folder.mkdir()
            for name, content in contents.items():
                (folder / name).write_bytes(content)

        self.later(write)


def _used(lods: list[Json]) -> int:
    """Returns the number of distinct levels."""
    return next((level for level in range(1, len(lods)) if lods[level] is lods[level - 1]), len(lods))


def _leaf(page: Page, lods: list[Json]) -> Json:
    own = {
        "bounds": [_box(bounds) for bounds in page.bounds[: len(lods)]],
        "errors": [float(f"{error:.6g}") for error in page.errors[: len(lods)]],
    }
    return {
        "bound": _box(page.core),
        "lods": {str(level): entry for level, entry in enumerate(lods)},
        OWN: own,
    }


def _tree(nodes: list[Json]) -> Json:
    """Returns the root of a binary tree over leaves in order; a node has the box of its children."""
    while len(nodes) > 1:
        pairs = [nodes[start : start + 2] for start in range(0, len(nodes), 2)]
        nodes = [pair[0] if len(pair) == 1 else {"bound": _union(pair), "children": pair} for pair in pairs]
    return nodes[0]


def _union(nodes: list[Json]) -> Json:
    low = np.min([node["bound"]["min"] for node in nodes], axis=0)
    high = np.max([node["bound"]["max"] for node in nodes], axis=0)
    return {"min": low.tolist(), "max": high.tolist()}


def _box(corners: Any) -> Json:
    # Nine digits restore float32 exactly.
    low, high = ([float(f"{value:.9g}") for value in corner] for corner in corners)
    return {"min": low, "max": high}
