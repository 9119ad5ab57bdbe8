"""Numbers as colours: a ramp from dark blue over green to pale yellow, which grows lighter all the way."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lumigrad.client.base.arrays import Float32

# Evenly spaced, sRGB.
_STOPS = (
    (0.09, 0.07, 0.26),
    (0.17, 0.20, 0.53),
    (0.12, 0.41, 0.62),
    (0.13, 0.60, 0.58),
    (0.37, 0.76, 0.42),
    (0.74, 0.87, 0.28),
    (0.99, 0.95, 0.63),
)


def ramp_colors(fractions: npt.NDArray[Any]) -> Float32:
    """[..., 3] colours 0 to 1 of numbers 0 (dark) to 1 (light); others are clipped, what is no number is dark."""
    places = np.linspace(0.0, 1.0, len(_STOPS))
    inside = np.clip(np.nan_to_num(fractions), 0.0, 1.0)
    return np.stack([np.interp(inside, places, channel) for channel in zip(*_STOPS, strict=True)], axis=-1).astype(
        np.float32
    )
