"""Gaussians on disk in buckets along a curve, so that a scene is sorted without ever being whole in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lumigrad.client.formats.levels.ordering import Codes, Curve, pages_of
from lumigrad.client.formats.scene import TENSORS, StoredScene, joined

# Gaussians per bucket, on average.
BUCKET_ROWS = 1 << 19


@dataclass(frozen=True)
class Buckets:
    """Files of Gaussians, one for each range of the curve; a file is removed once it is read.

    Attributes:
        folder: an empty folder.
        curve: the order of the Gaussians.
        borders: [B - 1] ascending places on the curve where buckets end.
        degree: the degree of the harmonics, for all Gaussians.
        antialiased: whether the scene was trained with antialiasing.
    """

    folder: Path
    curve: Curve
    borders: Codes
    degree: int
    antialiased: bool

    def __len__(self) -> int:
        return len(self.borders) + 1

    @staticmethod
    def row_bytes(degree: int) -> int:
        """Returns the bytes that a Gaussian takes."""
        return _record(degree).itemsize

    def add(self, scene: StoredScene) -> None:
        """Appends Gaussians to their buckets."""
        scene = scene.of_degree(self.degree)
        rows = np.empty(len(scene), _record(self.degree))
        rows["code"] = self.curve.codes(scene.means, scene.scales)
        for name in TENSORS:
            rows[name] = getattr(scene, name)
        numbers = np.searchsorted(self.borders, rows["code"], side="right")
        order = np.argsort(numbers, kind="stable")
        ends = np.searchsorted(numbers[order], np.arange(len(self) + 1))
        for number in np.flatnonzero(np.diff(ends)):
            with open(self._file(int(number)), "ab") as file:
                file.write(rows[order[ends[number] : ends[number + 1]]].data)

    def pages(self, page_rows: int) -> Iterator[StoredScene]:
        """Yields the pages of the scene in the order of the curve."""
        codes: Codes = np.zeros(0, np.uint64)
        rest: list[StoredScene] = []
        for number in range(len(self)):
            found = self._read(number)
            codes = np.concatenate([codes, found["code"]])
            tensors: dict[str, Any] = {name: np.ascontiguousarray(found[name]) for name in TENSORS}
            scene = joined([*rest, StoredScene(**tensors, antialiased=self.antialiased)])
            del found
            start = 0
            for end in pages_of(codes, page_rows, last=number == len(self) - 1):
                yield scene.reordered(np.arange(start, end))
                start = end
            codes, rest = codes[start:], [scene.reordered(np.arange(start, len(scene)))]

    def _read(self, number: int) -> Any:
        """Returns the rows of a bucket in the order of the curve."""
        file = self._file(number)
        if not file.exists():
            return np.empty(0, _record(self.degree))
        rows = np.fromfile(file, _record(self.degree))
        file.unlink()
        return rows[np.argsort(rows["code"], kind="stable")]

    def _file(self, number: int) -> Path:
        return self.folder / f"bucket_{number}"


def _record(degree: int) -> np.dtype[Any]:
    shapes = {"means": (3,), "quats": (4,), "scales": (3,), "opacities": (), "sh": ((degree + 1) ** 2, 3)}
    return np.dtype([("code", "<u8"), *((name, "<f4", shapes[name]) for name in TENSORS)])
