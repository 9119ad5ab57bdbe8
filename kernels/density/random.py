"""Counter-based random numbers, a function of seed, step and row."""

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
    """Random numbers that depend on nothing but seed, step and row.

    They are the same on every machine, instruction set and device, and for any number of threads. Different kinds of
    operations (noise, splits, relocation, …) use independent streams of one `Draw`.

    Attributes:
        seed: The seed of the training, 0 to 2**64 - 1.
        step: The step of the training, 0 to 2**64 - 1; each step has its own numbers.

    Raises:
        ArgumentError: A value is out of range.
    """

    seed: int
    step: int

    def __post_init__(self) -> None:
        for name in ("seed", "step"):
            value = getattr(self, name)
            check(is_whole(value) and 0 <= value < _WORDS, name, "a whole number from 0 to 2**64 - 1", value)

    def native(self, stream: str | int) -> Any:
        """The extension's generator for a stream, a name of `STREAMS` or a number."""
        number = STREAMS.index(stream) if isinstance(stream, str) else stream
        return _native.DensityDraw(int(self.seed), int(self.step), number)


def check_draw(draw: Draw) -> None:
    """Checks the type.

    Raises:
        ArgumentError: The argument is not a `Draw`.
    """
    check(isinstance(draw, Draw), "draw", "a Draw(seed, step)", type(draw).__name__)


_ROWS = 2**32


def random_words(draw: Draw, count: int, device: torch.device, *, stream: int = 0, first: int = 0) -> torch.Tensor:
    """Words of Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).

    Args:
        draw: Seed and step: the seed is the key, the step the last two words of the counter, low word first.
        count: The number of rows.
        device: The device of the result.
        stream: The counter's second word. Other functions use streams >= 1 of the same `draw`.
        first: The number of the first row, 0 to 2**32 - 1: the counter's first word.

    Returns:
        i32 [count, 4], the bits of unsigned integers.

    Raises:
        ArgumentError: A number is out of range.
    """
    rows = _rows(draw, count, torch.int32, device, stream, first)
    engine_for(device).run("random_words", draw.native(stream), first, rows=rows)
    return rows


def normals(draw: Draw, count: int, device: torch.device, *, stream: int = 0, first: int = 0) -> torch.Tensor:
    """Standard normal numbers: the words of `random_words` through the Box-Muller transform.

    They have the same bits on every machine and device.

    Args:
        draw: The random numbers to use.
        count: The number of rows.
        device: The device of the result.
        stream: Name of the stream, as for `random_words`.
        first: First row, as for `random_words`.

    Returns:
        f32 [count, 4]; columns 0 and 1 come from words 0 and 1, columns 2 and 3 from words 2 and 3.

    Raises:
        ArgumentError: A number is out of range.
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
