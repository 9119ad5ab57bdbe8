"""Random numbers by row."""

from __future__ import annotations

import torch

from lumigrad.kernels.buffers import empty
from lumigrad.kernels.checks import check, is_whole
from lumigrad.kernels.density.draw import Draw, check_draw
from lumigrad.kernels.density.engine import engine_for

_ROWS = 2**32


def random_words(draw: Draw, count: int, device: torch.device, *, stream: int = 0, first: int = 0) -> torch.Tensor:
    """Words of Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).

    Args:
        draw: Whose numbers: the key is its seed, the counter's last two words its step, low word first.
        count: Rows.
        device: Where they are to be.
        stream: The counter's second word. Those from 1 on are also used by other calls with the same `draw`.
        first: The first row, 0 to 2**32 - 1: the counter's first word.

    Returns:
        i32 [count, 4], to be read as unsigned.

    Raises:
        ArgumentError: A number is outside its range.
    """
    rows = _rows(draw, count, torch.int32, device, stream, first)
    engine_for(device).run("random_words", draw.native(stream), first, rows=rows)
    return rows


def normals(draw: Draw, count: int, device: torch.device, *, stream: int = 0, first: int = 0) -> torch.Tensor:
    """Independent normal numbers of mean 0 and deviation 1: the words of `random_words` by Box and Muller's transform.

    They have the same bits everywhere.

    Args:
        draw: Whose numbers.
        count: Rows.
        device: Where they are to be.
        stream: See `random_words`.
        first: See `random_words`.

    Returns:
        f32 [count, 4], of words 0 and 1 the first two columns, of words 2 and 3 the others.

    Raises:
        ArgumentError: A number is outside its range.
    """
    rows = _rows(draw, count, torch.float32, device, stream, first)
    engine_for(device).run("normals", draw.native(stream), first, rows=rows)
    return rows


def _rows(draw: Draw, count: int, dtype: torch.dtype, device: torch.device, stream: int, first: int) -> torch.Tensor:
    check_draw(draw)
    for name, value in (("stream", stream), ("first", first)):
        check(is_whole(value) and 0 <= value < _ROWS, name, "a whole number from 0 to 2**32 - 1", value)
    fits = is_whole(count) and 0 <= count <= _ROWS - first
    check(fits, "count", f"0 to {_ROWS - first} rows, of 2**32 from row {first} on", count)
    return empty((count, 4), dtype, device)
