"""Warns about values that are probably mistakes: imprecise coordinates, levels as colours, other units and the like."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from lumigrad.client.base.arrays import Array
from lumigrad.client.errors import PrecisionWarning

# Colours with 1 for white exceed this level only in a few bright lights; levels exceed it in most of a picture.
_LEAST_LEVEL, _SHARE_OF_LEVELS = 16, 0.05
# Given as fractions of the picture's size, focal lengths look shorter than this share of it, and principal points lie
# within this many pixels of the corner.
_SHORT_FOCAL_LENGTH, _CORNER = 0.05, 1.0
_silent: ContextVar[bool] = ContextVar("silent", default=False)


def warn_of(name: str, lost: str) -> None:
    """Warns about an argument's loss of precision, at the line that called Lumigrad; `said` silences this.

    Args:
        name: the argument.
        lost: the text from `precision.lost_by`; empty: nothing is lost.
    """
    if lost and not _silent.get():
        warn_caller(f"{name}: {lost}", PrecisionWarning)


def warn_of_levels(name: str, colors: Array) -> None:
    """Warns, like `warn_of`, about colours that are probably levels of 8 or 16 bits; ignores a few bright ones."""
    if np.count_nonzero(colors > _LEAST_LEVEL) > _SHARE_OF_LEVELS * colors.size and not _silent.get():
        text = f"expected colours with 1 for white, got many beyond {_LEAST_LEVEL}, which are used as they are"
        warn_caller(f"{name}: {text}; pass levels of 0 to 255 as uint8, or divide them by the largest")


def warn_of_bytes(name: str, colors: Array) -> None:
    """Warns, like `warn_of`, about colours in integers, since they are not divided by 255; ignores flags of 0 and 1."""
    if colors.dtype.kind in "iu" and colors.max(initial=0) > 1 and not _silent.get():
        text = f"expected colours with 1 for white, got {colors.dtype}, whose values are used as they are"
        warn_caller(f"{name}: {text}; divide levels by 255")


def warn_of_radians(name: str, degrees: float) -> None:
    """Warns, like `warn_of`, about an angle of view that is so small that it is probably in radians."""
    if degrees < math.pi and not _silent.get():
        warn_caller(f"{name}: expected degrees, got {degrees:g}; are they radians?")


def warn_of_flags(name: str, levels: Array) -> None:
    """Warns, like `warn_of`, about a mask of levels 0 and 1, which mean weights of 0 and 1/255."""
    if levels.max(initial=0) == 1 and not _silent.get():
        warn_caller(
            f"{name}: expected levels of 0 to 255, got uint8 of at most 1, a weight of 1/255; pass flags as bool"
        )


def warn_of_fractions(focal: tuple[float, float], center: tuple[float, float], size: tuple[int, int]) -> None:
    """Warns, like `warn_of`, if focal length and principal point are probably fractions of the picture's size.

    Args:
        focal: fx, fy.
        center: cx, cy.
        size: width and height, pixels.
    """
    is_short = max(focal[0] / size[0], focal[1] / size[1]) < _SHORT_FOCAL_LENGTH
    if is_short and min(center) >= 0 and max(center) <= _CORNER and not _silent.get():
        given = ", ".join(f"{value:g}" for value in (*focal, *center))
        text = f"expected pixels, got {given} for a picture of {size[0]} x {size[1]}"
        warn_caller(f"fx, fy, cx, cy: {text}; multiply fractions of the picture by its width and height")


def warn_caller(text: str, category: type[Warning] = UserWarning) -> None:
    """Warns at the line that called Lumigrad."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(("lumigrad.", "dataclasses")):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)


@contextmanager
def said() -> Iterator[None]:
    """Silences `warn_of` for a `with` block whose warnings were already given or do not apply."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)
