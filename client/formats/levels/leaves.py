"""Gradients of the finest Gaussians of a scene with levels, propagated back through the merges."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lumigrad.client.base.arrays import Float64
from lumigrad.client.base.timings import Gradients
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.formats.levels.merge_gradients import NAMES, Rows, through_merge
from lumigrad.client.formats.levels.ordering import MERGED
from lumigrad.client.formats.levels.pages import GaussianLevels

Integers = npt.NDArray[np.int64]


def leaf_gradients(levels: GaussianLevels, gradients: Gradients) -> Gradients:
    """Returns the gradients of the level-0 Gaussians that the drawn Gaussians were merged from.

    A merge is a differentiable map of moments, and each gradient of a merged Gaussian goes back through all merges that
    made it, in float64. Gradients of Gaussians that were drawn at level 0 are unchanged.

    Args:
        levels: the scene that was drawn; the pages of the drawn Gaussians are read.
        gradients: the result of `Frame.backward`.

    Returns:
        Gradients of the same names; `index` is ascending and refers to rows of level 0 only.

    Raises:
        InvalidArgument: the gradients lack means, quats, scales, opacities or sh, or Lumigrad did not merge the levels.
        OSError: a page cannot be read.

    Example:
        gradients = leaf_gradients(levels, frame.backward(frame.color - 0.5))
    """
    missing = [name for name in ("index", *NAMES) if name not in gradients]
    if missing:
        raise InvalidArgument.of("gradients", f"expected index, {', '.join(NAMES)}, got none of {', '.join(missing)}")
    starts = np.cumsum(levels.counts) - levels.counts.ravel()
    blocks = np.searchsorted(starts, gradients.index, "right") - 1
    found: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in ("index", *NAMES)}
    for block in np.unique(blocks).tolist():
        page, level = divmod(block, levels.levels)
        chosen = blocks == block
        rows = gradients.index[chosen] - starts[block]
        upstream = {name: gradients[name][chosen].astype(np.float64) for name in NAMES}
        for finer in range(level - 1, -1, -1):
            rows, upstream = _one_level(levels, page, finer, rows, upstream)
        found["index"].append(rows + starts[page * levels.levels])
        for name in NAMES:
            found[name].append(upstream[name].astype(np.float32))
    others = {name: value for name, value in gradients.items() if name not in found}
    leaves = {name: np.concatenate(parts) if parts else gradients[name] for name, parts in found.items()}
    return Gradients({**others, **leaves}, gradients.timings)


def _one_level(
    levels: GaussianLevels, page: int, finer: int, rows: Integers, upstream: dict[str, Float64]
) -> tuple[Integers, dict[str, Float64]]:
    """Returns the rows of a page's finer level that became `rows` of the next level, and their gradients."""
    count, above = levels.counts[page, finer], levels.counts[page, finer + 1]
    if above not in (-(-count // MERGED), count):
        text = f"expected levels that Lumigrad has merged, got {count} and {above} Gaussians in levels of page {page}"
        raise InvalidArgument.of("levels", text)
    if above == count:
        # A page with one row repeats it on coarser levels.
        return rows, upstream
    sizes = np.minimum(MERGED, count - rows * MERGED)
    starts = np.cumsum(sizes) - sizes
    children = np.repeat(rows * MERGED - starts, sizes) + np.arange(sizes.sum())
    parts, merged = _rows(levels.read(page, finer), children), _rows(levels.read(page, finer + 1), rows)
    _check_are_merges(parts, merged, starts, page)
    return children, through_merge(parts, merged, starts, upstream)


def _check_are_merges(parts: Rows, merged: Rows, starts: Integers, page: int) -> None:
    """Raises InvalidArgument for merged rows far from their parts, with a tolerance for the rounding of files."""
    low, high = np.minimum.reduceat(parts["means"], starts), np.maximum.reduceat(parts["means"], starts)
    room = (high - low).max(axis=1) + np.maximum.reduceat(parts["scales"].max(axis=1), starts)
    means = merged["means"]
    is_far = ((means < low - room[:, None]) | (means > high + room[:, None])).any(axis=1)
    if is_far.any():
        found = f"{is_far.sum()} Gaussians of page {page} far from their parts"
        raise InvalidArgument.of("levels", f"expected levels that Lumigrad has merged, got {found}")


def _rows(scene: Any, rows: Integers) -> Rows:
    return {name: getattr(scene, name)[rows].astype(np.float64) for name in NAMES}
