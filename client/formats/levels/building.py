"""Builds the pages and levels of a scene on disk, in memory that does not grow with the scene."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from lumigrad.client.base.extras import require
from lumigrad.client.formats.levels.chunks import Chunks, chunks_of
from lumigrad.client.formats.levels.coarsening import Page, levels_of
from lumigrad.client.formats.levels.ordering import PAGE_ROWS, Curve
from lumigrad.client.formats.levels.partial import check_room, whole_folder
from lumigrad.client.formats.levels.scratch import BUCKET_ROWS, Buckets
from lumigrad.client.formats.levels.units import Units
from lumigrad.client.formats.scene import StoredScene
from lumigrad.client.formats.source import malformed

# Number of Gaussians sampled to fit the curve and the borders of the buckets.
_SAMPLE = 1 << 20
# The highest degree of harmonics that SOG holds.
_DEGREE = 3
# Generous estimate of the bytes per Gaussian of degree 3 in the finished files, including its levels.
_WRITTEN_BYTES = 64

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Built:
    """The levels that were written.

    Attributes:
        count: Gaussians of level 0.
        skipped: Gaussians that were left out because they cannot be rendered.
        pages: number of pages.
        levels: number of levels.
        example: one Gaussian with the scene's degree and details, flat if all are, by which `losses` says what is lost.
    """

    count: int
    skipped: int
    pages: int
    levels: int
    example: StoredScene


def write_levels(
    source: str | PathLike[str],
    folder: str | PathLike[str],
    *,
    sh_degree: int = _DEGREE,
    page_rows: int = PAGE_ROWS,
    progress: Progress = lambda stage, done, total: None,
) -> Built:
    """Writes a scene as streamed SOG with pages and levels, which `GaussianLevels.open` and other viewers read.

    The scene may be larger than memory if it is a .ply or streamed SOG; writing takes about 250 bytes of scratch disk
    per Gaussian of degree 3. The folder appears once it is complete.

    Args:
        source: the scene, see `chunks_of`.
        folder: the folder to write; one that holds streamed SOG is replaced.
        sh_degree: the highest degree of harmonics to keep, 0 to 3.
        page_rows: the most Gaussians of a page, up to `PAGE_ROWS`.
        progress: called with the stage, the number of Gaussians done, and their total.

    Raises:
        InvalidArgument: the source cannot be read, has no Gaussian that can be rendered, or the folder has other files.
        OSError: the disk is full, or the folder cannot be written.
    """
    require("PIL.Image", "io", "writing .sog files")
    chunks = chunks_of(source)
    with whole_folder(Path(folder)) as new:
        survey = _Survey.of(chunks, progress)
        if not survey.count:
            raise malformed(source, "expected at least one finite Gaussian, got none")
        degree = min(survey.degree, sh_degree)
        check_room(new, survey.count * (Buckets.row_bytes(degree) + _WRITTEN_BYTES))
        buckets = survey.buckets(new / "scratch", degree, page_rows)
        buckets.folder.mkdir()
        done = 0
        for chunk in chunks:
            buckets.add(chunk)
            progress("sorting", done := done + len(chunk), survey.count)
        pages, levels = _write(buckets, new, page_rows, survey, progress)
        buckets.folder.rmdir()
    example = survey.example(survey.degree if sh_degree == _DEGREE else degree)
    return Built(survey.count, chunks.count - survey.count, pages, levels, example)


@dataclass(frozen=True)
class _Survey:
    """Statistics gathered by the first pass over a scene."""

    count: int
    degree: int
    antialiased: bool
    is_flat: bool
    details: Mapping[str, Any]
    means: Any
    scales: Any

    @staticmethod
    def of(chunks: Chunks, progress: Progress) -> _Survey:
        """Reads a scene once, and samples its Gaussians at a regular interval."""
        step = -(-chunks.count // _SAMPLE)
        count, degree, antialiased, is_flat = 0, 0, True, True
        details: Mapping[str, Any] = {}
        means, scales = [np.zeros((0, 3), np.float32)], [np.zeros((0, 3), np.float32)]
        for chunk in chunks:
            taken = slice(-count % max(step, 1), None, max(step, 1))
            means.append(chunk.means[taken].copy())
            scales.append(chunk.scales[taken].copy())
            count, degree = count + len(chunk), max(degree, chunk.degree)
            antialiased, details = antialiased and chunk.antialiased, chunk.details
            is_flat &= chunk.is_flat or not len(chunk)
            progress("reading", count, chunks.count)
        return _Survey(count, degree, antialiased, is_flat, details, np.concatenate(means), np.concatenate(scales))

    def example(self, degree: int) -> StoredScene:
        """Returns one Gaussian of this degree with what the whole scene is."""
        scales = np.array([[1.0, 1.0, 0.0 if self.is_flat else 1.0]], np.float32)
        sh = np.zeros((1, (degree + 1) ** 2, 3), np.float32)
        row = np.zeros((1, 3), np.float32), np.eye(1, 4, dtype=np.float32), scales, np.ones(1, np.float32), sh
        return StoredScene(*row, antialiased=self.antialiased, details=self.details)

    def buckets(self, folder: Path, degree: int, page_rows: int) -> Buckets:
        """Plans buckets of equal size along a curve through the sample."""
        curve = Curve.through(self.means, len(self.means) / self.count, page_rows)
        codes = np.sort(curve.codes(self.means, self.scales))
        number = -(-self.count // BUCKET_ROWS)
        borders = np.unique(codes[np.arange(1, number) * len(codes) // number])
        return Buckets(folder, curve, borders, degree, self.antialiased)


def _write(buckets: Buckets, folder: Path, page_rows: int, survey: _Survey, progress: Progress) -> tuple[int, int]:
    """Writes all pages; returns the numbers of pages and levels."""
    count, pages, writing = levels_of(page_rows), 0, deque[Future[None]]()
    with ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="levels") as pool:

        def later(write: Callable[[], None]) -> None:
            writing.append(pool.submit(write))
            # Bounds the memory of waiting pages, and raises errors of writes early.
            while len(writing) > 2 * (os.cpu_count() or 1):
                writing.popleft().result()

        units, done = Units(folder, later), 0
        try:
            for page in _in_order(pool, lambda scene: Page.of(scene, count), buckets.pages(page_rows)):
                units.add(page)
                pages += 1
                progress("merging", done := done + len(page.levels[0]), survey.count)
            levels = units.finish(buckets.degree, survey.antialiased)
            while writing:
                writing.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    return pages, levels


def _in_order(
    pool: ThreadPoolExecutor, job: Callable[[StoredScene], Page], scenes: Iterable[StoredScene]
) -> Iterator[Page]:
    """Yields the results of a job in order, computing a few of them in parallel."""
    waiting: deque[Future[Page]] = deque()
    for scene in scenes:
        waiting.append(pool.submit(job, scene))
        if len(waiting) > (os.cpu_count() or 1):
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
