"""A scene of Gaussians as spatial pages, each with levels of detail that are read when they are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from os import PathLike

import numpy as np
import numpy.typing as npt

from lumigrad.client.base.arrays import Float32
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.formats.clustering import morton_order
from lumigrad.client.formats.levels.merging import MERGED, covariances_of, error_of, merged
from lumigrad.client.formats.scene import StoredScene
from lumigrad.client.values.gaussians import Gaussians

# The most Gaussians of a page at its finest level.
PAGE_ROWS = 65536
# Gaussians end where renderers cut them off, at this many standard deviations.
_CUT = 3.0


@dataclass(frozen=True, eq=False)
class GaussianLevels:
    """P pages of neighbouring Gaussians, each with L levels of detail, of which a renderer holds one at a time.

    Level 0 has every Gaussian of the page, at most `PAGE_ROWS`. Each next level has about a quarter of the rows, merged
    from those of the level before it; the coarsest has one. A page that reaches one row earlier repeats it. A level is
    fine enough for a camera where `errors[page, level] * focal / distance` is at most 1, in pixels: with the focal
    length in pixels, and the distance from the camera to the nearest point of `bounds[page]`.

    Attributes:
        bounds: [P, 2, 3] float32, lowest and highest corner of each page, scene units and world axes. They contain the
            Gaussians of all levels up to three standard deviations.
        counts: [P, L] int64, the rows of each level, at least 1.
        errors: [P, L] float32, by how much a level moves what the page draws, scene units; 0 for level 0, and never
            less than those of finer levels.
        sh_degree: the degree of the harmonics.
        antialiased: whether the scene was trained with antialiasing, so that it should be rendered with it.
        source: returns the Gaussians of a page and level; may be called by several threads at once.

    Example:
        levels = GaussianLevels.of(Gaussians.load("sample:vase"))
        coarsest = [levels.read(page, levels.levels - 1) for page in range(len(levels))]
    """

    bounds: Float32
    counts: npt.NDArray[np.int64]
    errors: Float32
    sh_degree: int
    antialiased: bool
    source: Callable[[int, int], Gaussians]

    def __len__(self) -> int:
        """P, the number of pages."""
        return len(self.bounds)

    @property
    def levels(self) -> int:
        """L, the number of levels."""
        return int(self.counts.shape[1])

    def read(self, page: int, level: int) -> Gaussians:
        """Reads one level of a page.

        Args:
            page: 0 to P - 1.
            level: 0, the finest, to L - 1.

        Raises:
            InvalidArgument: there is no such page or level, or its file is damaged.
            OSError: its file cannot be read.

        Example:
            page = levels.read(0, levels.levels - 1)
        """
        for name, value, count in (("page", page, len(self)), ("level", level, self.levels)):
            if not 0 <= value < count:
                raise InvalidArgument.of(name, f"expected 0 to {count - 1}, got {value}")
        return self.source(page, level)

    @staticmethod
    def of(gaussians: Gaussians, *, page_rows: int = PAGE_ROWS) -> GaussianLevels:
        """Builds the pages and levels of a scene in memory.

        Args:
            gaussians: one scene of finite Gaussians with quats and scales and 3 colour channels, at least one.
            page_rows: the most Gaussians of a page, 1 to `PAGE_ROWS`.

        Raises:
            InvalidArgument: Gaussians that no file can hold, or another number of rows.

        Example:
            levels = GaussianLevels.of(Gaussians.load("sample:vase"), page_rows=4096)
        """
        if not 1 <= page_rows <= PAGE_ROWS:
            raise InvalidArgument.of("page_rows", f"expected 1 to {PAGE_ROWS:,}, got {page_rows}")
        scene = StoredScene.of(gaussians, "gaussians")
        if not len(scene):
            raise InvalidArgument.of("gaussians", "expected at least one Gaussian, got none")
        scene = scene.reordered(morton_order(scene.means))
        depth = levels_of(min(page_rows, len(scene)))
        pages = [
            list(coarser(scene.reordered(np.arange(start, min(start + page_rows, len(scene)))), depth))
            for start in range(0, len(scene), page_rows)
        ]
        return GaussianLevels(
            bounds=np.stack([bounds_of([scene for scene, _ in page]) for page in pages]),
            counts=np.array([[len(scene) for scene, _ in page] for page in pages], np.int64),
            errors=np.array([[error for _, error in page] for page in pages], np.float32),
            sh_degree=scene.degree,
            antialiased=scene.antialiased,
            source=lambda page, level: pages[page][level][0].gaussians(),
        )

    @staticmethod
    def open(path: str | PathLike[str]) -> GaussianLevels:
        """Opens the files of a scene with levels, of which only the index is read.

        Args:
            path: the folder, or its lod-meta.json.

        Raises:
            InvalidArgument: no such scene, or a damaged one; names the file.

        Example:
            levels = GaussianLevels.open(folder / "city")
        """
        raise NotImplementedError(f"{path}: scenes in files cannot be opened yet")


def levels_of(rows: int) -> int:
    """Returns the number of levels of a page of so many rows, the last of one row."""
    count = 1
    while rows > 1:
        rows, count = -(-rows // MERGED), count + 1
    return count


def coarser(scene: StoredScene, levels: int) -> Iterator[tuple[StoredScene, float]]:
    """Yields so many levels of a page with their errors, the page itself first."""
    variances = np.zeros(len(scene))
    error = 0.0
    yield scene, error
    for _ in range(levels - 1):
        if len(scene) > 1:
            scene, variances = merged(scene, np.arange(0, len(scene), MERGED), variances)
            error = max(error, error_of(scene, variances))
        yield scene, error


def bounds_of(scenes: list[StoredScene]) -> Float32:
    """Returns [2, 3], the corners of the box around all Gaussians up to three standard deviations."""
    low, high = np.full(3, np.inf), np.full(3, -np.inf)
    for scene in scenes:
        reach = _CUT * np.sqrt(np.einsum("nii->ni", covariances_of(scene)))
        low = np.minimum(low, (scene.means - reach).min(axis=0))
        high = np.maximum(high, (scene.means + reach).max(axis=0))
    # Rounded outwards, so that float32 cuts nothing off.
    return np.stack([np.nextafter(low.astype(np.float32), -np.inf), np.nextafter(high.astype(np.float32), np.inf)])
