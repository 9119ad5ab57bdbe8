"""Which random numbers a call draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lumigrad.kernels import _native
from lumigrad.kernels.checks import check, is_whole

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
    """Refuses what is no `Draw`.

    Raises:
        ArgumentError: It is none.
    """
    check(isinstance(draw, Draw), "draw", "a Draw(seed, step)", type(draw).__name__)
