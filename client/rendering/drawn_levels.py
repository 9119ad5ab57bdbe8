"""Reports the part of a scene with levels of detail that a worker drew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lumigrad.v1 import render_pb2


@dataclass(frozen=True)
class DrawnLevels:
    """The part of a scene with levels of detail that a new view draws.

    A repeated view may draw fewer pages, with the same image.

    Attributes:
        counts: Gaussians of each level, the finest first.
        error_px: the largest error of a page, pixels.
        coarse_pages: pages in view that were drawn coarser than `max_error_px` allows, because there was no room for
            more Gaussians.
        late_pages: pages in view that were drawn coarser than `max_error_px` allows, or not at all, because they were
            not in memory; 0 unless `wait` is False.
        missing_pages: the late pages that were not drawn at all.
    """

    counts: tuple[int, ...]
    error_px: float
    coarse_pages: int
    late_pages: int
    missing_pages: int

    @staticmethod
    def of(levels: render_pb2.DrawnLevels) -> DrawnLevels:
        """Reads a worker's message."""
        pages = levels.coarse_pages, levels.late_pages, levels.missing_pages
        return DrawnLevels(tuple(levels.counts), levels.error_px, *pages)

    @staticmethod
    def together(parts: Sequence[DrawnLevels | None]) -> DrawnLevels | None:
        """Merges what several workers drew of one scene: sums the counts and keeps the largest error."""
        drawn = [part for part in parts if part is not None]
        if not drawn:
            return None
        return DrawnLevels(
            tuple(map(sum, zip(*(part.counts for part in drawn), strict=True))),
            max(part.error_px for part in drawn),
            sum(part.coarse_pages for part in drawn),
            sum(part.late_pages for part in drawn),
            sum(part.missing_pages for part in drawn),
        )
