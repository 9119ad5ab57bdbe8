"""Numbers as colours on a web page: for depths, and for distances, with the legend that explains them."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt

Levels = npt.NDArray[np.uint8]
_Color = tuple[float, float, float]
_ENTRIES = 1024


class ColorScale:
    """Colours of the numbers from 0 to 1; others are clipped, what is no number is 0."""

    def __init__(self, stops: Sequence[_Color], places: Sequence[float] | None = None) -> None:
        """Interpolates.

        Args:
            stops: sRGB, 0 to 1.
            places: of the stops, growing from 0 to 1; None: evenly spaced. The same place twice is a jump.
        """
        self._stops = stops
        self._places = list(np.linspace(0.0, 1.0, len(stops))) if places is None else list(places)
        channels = [
            np.interp(np.linspace(0.0, 1.0, _ENTRIES), self._places, channel) for channel in zip(*stops, strict=True)
        ]
        self._table: Levels = np.rint(255.0 * np.stack(channels, axis=-1)).astype(np.uint8)

    def levels(self, fractions: npt.NDArray[Any]) -> Levels:
        """[..., 3] colours of numbers [...]."""
        places = fractions * np.float32(_ENTRIES - 1)
        # The smaller of a number and of none is none; fmax prefers the number.
        inside = np.fmin(np.fmax(places, 0), _ENTRIES - 1).astype(np.int16)
        table: Levels = self._table.take(inside, axis=0)
        return table

    def legend(self, title: str, marks: Sequence[str]) -> str:
        """HTML: a bar with evenly spaced marks below it."""
        steps = ", ".join(
            f"rgb({', '.join(str(round(255 * value)) for value in stop)}) {100 * place:.1f}%"
            for stop, place in zip(self._stops, self._places, strict=True)
        )
        labels = "".join(f"<span>{escape(mark)}</span>" for mark in marks)
        return (
            f'<div style="padding:0.1em 0.6em 0.5em;font-size:0.8em"><div style="margin-bottom:0.2em">{escape(title)}'
            f'</div><div style="height:0.8em;border-radius:3px;background:linear-gradient(to right, {steps})"></div>'
            f'<div style="display:flex;justify-content:space-between">{labels}</div></div>'
        )


# "Turbo": from dark blue over green to dark red; neighbouring depths differ most in it.
DEPTHS = ColorScale(
    (
        (0.19, 0.07, 0.23),
        (0.25, 0.25, 0.63),
        (0.28, 0.42, 0.89),
        (0.26, 0.58, 1.00),
        (0.16, 0.74, 0.92),
        (0.09, 0.87, 0.76),
        (0.20, 0.95, 0.59),
        (0.43, 0.99, 0.39),
        (0.64, 0.99, 0.23),
        (0.80, 0.92, 0.20),
        (0.93, 0.81, 0.23),
        (0.99, 0.67, 0.20),
        (0.98, 0.49, 0.13),
        (0.92, 0.31, 0.05),
        (0.82, 0.18, 0.02),
        (0.66, 0.08, 0.00),
        (0.48, 0.02, 0.01),
    )
)
# Red up to the surface; with a jump there, so that a touch is seen.
DISTANCES = ColorScale(
    ((0.42, 0.0, 0.05), (0.86, 0.08, 0.10), (0.99, 0.80, 0.25), (0.45, 0.78, 0.45), (0.22, 0.47, 0.86)),
    (0.0, 0.5, 0.5, 0.7, 1.0),
)
