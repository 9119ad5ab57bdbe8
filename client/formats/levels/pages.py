"""A scene of Gaussians as spatial pages, each with levels of detail that are read when they are needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike

import numpy as np
import numpy.typing as npt

from lumigrad.client.base.arguments import instance
from lumigrad.client.base.arrays import Float32
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.formats.levels.coarsening import Page, levels_of
from lumigrad.client.formats.levels.opening import PageFiles
from lumigrad.client.formats.levels.ordering import PAGE_ROWS, Curve, pages_of
from lumigrad.client.formats.scene import StoredScene
from lumigrad.client.values.gaussians import Gaussians


@dataclass(frozen=True, eq=False)
class GaussianLevels:
    """P pages of neighbouring Gaussians, each with L levels of detail, of which a renderer holds one at a time.

    Level 0 has every Gaussian of the page, at most `PAGE_ROWS`. Each next level has about a quarter of the rows, merged
    from those of the level before it; the coarsest has one. A page that reaches one row earlier repeats that row. A
    level is fine enough for a camera where `errors[page, level] * focal / distance` is at most 1, in pixels: with the
    focal length in pixels, and the distance from the camera to the nearest point of `bounds[page, 0]`.

    Attributes:
        bounds: [P, L, 2, 3] float32, lowest and highest corner of each level, scene units and world axes. They contain
            its Gaussians up to three standard deviations, and the bounds of finer levels.
        counts: [P, L] int64, the rows of each level, at least 1. Pages that another program wrote may have more than
            `PAGE_ROWS`, and other ratios.
        errors: [P, L] float32, how far apart the content was that a level draws as one Gaussian, scene units; 0 for
            level 0, and never less than for finer levels.
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
            InvalidArgument: no file can hold the Gaussians, or `page_rows` is out of range.

        Example:
            levels = GaussianLevels.of(Gaussians.load("sample:vase"), page_rows=4096)
        """
        if not 1 <= page_rows <= PAGE_ROWS:
            raise InvalidArgument.of("page_rows", f"expected 1 to {PAGE_ROWS:,}, got {page_rows}")
        instance("gaussians", gaussians, (Gaussians,), "read a file with Gaussians.load; open reads one with levels")
        scene = StoredScene.of(gaussians, "gaussians")
        if not len(scene):
            raise InvalidArgument.of("gaussians", "expected at least one Gaussian, got none")
        curve = Curve.through(scene.means, 1.0, page_rows)
        codes = curve.codes(scene.means, scene.scales)
        order = np.argsort(codes, kind="stable")
        ends = list(pages_of(codes[order], page_rows, last=True))
        parts = [order[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        pages = [Page.of(scene.reordered(part), levels_of(page_rows)) for part in parts]
        used = max(levels_of(len(part)) for part in parts)
        return GaussianLevels(
            bounds=np.stack([page.bounds[:used] for page in pages]),
            counts=np.array([[len(level) for level in page.levels[:used]] for page in pages], np.int64),
            errors=np.array([page.errors[:used] for page in pages], np.float32),
            sh_degree=scene.degree,
            antialiased=scene.antialiased,
            source=lambda page, level: pages[page].levels[level].gaussians(),
        )

    @staticmethod
    def open(path: str | PathLike[str]) -> GaussianLevels:
        """Opens the files of a scene with levels, of which only the index is read; see docs/formats.md.

        Files that `lumigrad convert --levels` wrote state their errors. For files of other programs, errors are
        estimated from the extent and the number of Gaussians of each level, and bounds are generous.

        Args:
            path: the folder, or its lod-meta.json.

        Raises:
            InvalidArgument: no such scene, or a damaged one; names the file.

        Example:
            levels = GaussianLevels.open(folder / "city")
        """
        files = PageFiles.open(path)
        return GaussianLevels(
            files.bounds, files.counts, files.errors, files.sh_degree, files.antialiased, source=files.read
        )
