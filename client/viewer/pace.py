"""How large pictures may be while a camera moves, so that they come at a certain rate."""

from __future__ import annotations

import math
from dataclasses import dataclass

# What a new measurement leaves of the one before, of that size; and of the weight of those of other sizes.
_MEMORY, _WEIGHT_KEPT = 0.6, 0.97
_LEAST_WEIGHT = 0.05
# One slow picture, of a busy machine, counts as so many times what was expected at the most.
_LARGEST_SURPRISE = 4.0
# Where a picture of any size is late, since the worker is far away, what pixels may cost of the time between pictures.
_LEAST_SHARE_OF_TIME = 0.3
# Before there were pictures of two sizes: the share of the time that does not depend on it.
_FIXED_SHARE = 0.5
# Sizes are halved in so many steps, and stay until another one fits better by more than this.
_STEPS = 4
_INERTIA_STEPS = 0.75


@dataclass
class _Size:
    """What pictures of one size took lately; seconds."""

    seconds: float
    weight: float = 1.0


class Pace:
    """Learns what a picture costs, a part whatever its size and a part for each pixel, and chooses sizes.

    Attributes:
        target_s: wanted between pictures.
    """

    def __init__(self, target_s: float, smallest: float = 0.25) -> None:
        """Begins without experience.

        Args:
            target_s: wanted between pictures, seconds.
            smallest: share of the full width and height below which pictures never fall.
        """
        self.target_s = target_s
        self._lowest_step = -_STEPS * math.log2(smallest)
        self._step = float(_STEPS)
        # By their pixels.
        self._sizes: dict[int, _Size] = {}

    def observe(self, pixels: int, seconds: float) -> None:
        """Learns from a picture.

        Args:
            pixels: its size.
            seconds: from one such picture to the next.
        """
        if self._sizes:
            seconds = min(seconds, _LARGEST_SURPRISE * max(self.expected_s(pixels), 1e-3))
        for size in self._sizes.values():
            size.weight *= _WEIGHT_KEPT
        known = self._sizes.get(pixels)
        mixed = seconds if known is None else _MEMORY * known.seconds + (1 - _MEMORY) * seconds
        self._sizes = {
            count: size for count, size in self._sizes.items() if size.weight > _LEAST_WEIGHT and count != pixels
        }
        self._sizes[pixels] = _Size(mixed)

    def expected_s(self, pixels: int) -> float:
        """Seconds that a picture takes; 0 without experience."""
        fixed, slope = self._costs()
        return fixed + slope * pixels

    def size(self, width: int, height: int) -> tuple[int, int]:
        """Width and height of the next picture while the camera moves, in a window of this size; pixels."""
        if self._sizes:
            ideal = min(max(self._ideal_step(width * height), 0.0), self._lowest_step)
            if abs(ideal - self._step) > _INERTIA_STEPS:
                self._step = min(float(round(ideal)), self._lowest_step)
        share = 2.0 ** (-self._step / _STEPS)
        return max(1, round(width * share)), max(1, round(height * share))

    def _ideal_step(self, pixels: int) -> float:
        """How many steps below the full size pictures take the time they may take."""
        fixed, slope = self._costs()
        spare = max(self.target_s - fixed, _LEAST_SHARE_OF_TIME * max(self.target_s, fixed))
        return _STEPS / 2 * math.log2(max(slope * pixels, 1e-9) / spare)

    def _costs(self) -> tuple[float, float]:
        """Seconds for any picture, and for a pixel: weighted least squares, neither of them negative."""
        if not self._sizes:
            return 0.0, 0.0
        total = sum(size.weight for size in self._sizes.values())
        pixels = sum(size.weight * count for count, size in self._sizes.items()) / total
        seconds = sum(size.weight * size.seconds for size in self._sizes.values()) / total
        spread = sum(size.weight * (count - pixels) ** 2 for count, size in self._sizes.items())
        if spread == 0.0:
            return _FIXED_SHARE * seconds, (1 - _FIXED_SHARE) * seconds / pixels
        covariance = sum(
            size.weight * (count - pixels) * (size.seconds - seconds) for count, size in self._sizes.items()
        )
        slope = max(covariance / spread, 0.0)
        fixed = seconds - slope * pixels
        return (fixed, slope) if fixed >= 0.0 else (0.0, seconds / pixels)
