"""Random numbers by row, and which of them a call draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from lumigrad.kernels import _native
from lumigrad.kernels.buffers import empty
from lumigrad.kernels.checks import check, is_whole
from lumigrad.kernels.density.engine import engine_for

_WORDS = 2**64
STREAMS: tuple[str, ...] = _native.DENSITY_STREAMS


@dataclass(frozen=True)
class Draw:
    """Random numbers that follow from these two and a row's number alone.

    A call with the same ones draws the same numbers again, on every machine, instruction set and device and with any
    number of threads. Calls of different kinds (noise, splits, relocation, …) draw different ones of the same `Draw`.

    Attributes:
        seed: Of a whole training, 0 to 2**64 - 1.
        step: Of the training, 0 to 2**64 - 1; another one draws other numbers.

    Raises:
        ArgumentError: A value is outside its range.
    """

    seed: int
    step: int

    def __post_init__(self) -> None:
        for name in ("seed", "step"):
            value = getattr(self, name)
            check(is_whole(value) and 0 <= value < _WORDS, name, "a whole number from 0 to 2**64 - 1", value)

    def native(self, stream: str | int) -> Any:
        """For the extension: those of a stream, of `STREAMS` or a number."""
        number = STREAMS.index(stream) if isinstance(stream, str) else stream
        return _native.DensityDraw(int(self.seed), int(self.step), number)


def check_draw(draw: Draw) -> None:
    """Checks the type.

    Raises:
        ArgumentError: It is not a `Draw`.
    """
    check(isinstance(draw, Draw), "draw", "a Draw(seed, step)", type(draw).__name__)


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
