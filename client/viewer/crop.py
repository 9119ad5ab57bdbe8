"""A box that hides everything outside it: its sliders, its outline, and the part of a scene inside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import viser

from lumigrad.client.base.arrays import Float64
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.spheres import Spheres

# The percentage of centres beyond either end of a slider: a few strays would make the rest of it useless.
_STRAYS_PERCENT = 0.5
_STEPS = 200
_COLOR = (120, 190, 255)


@dataclass(frozen=True)
class Box:
    """An axis-aligned box; infinite where it does not cut.

    Attributes:
        low: x, y and z of its lower corner, world frame, scene units.
        high: x, y and z of its upper corner.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]

    def part_of(self, scene: Spheres | Gaussians) -> Spheres | Gaussians:
        """Returns the Gaussians or spheres whose centres are inside."""
        centers = _centers(scene)
        is_inside = ((centers >= self.low) & (centers <= self.high)).all(axis=-1)
        parts: dict[str, Any] = {name: tensor[is_inside] for name, tensor in scene.tensors.items()}
        return type(scene)(**parts)


class CropPanel:
    """The sliders of a box in the panel of one browser, and its outline."""

    def __init__(self, browser: viser.ClientHandle, scene: Spheres | Gaussians, changed: Callable[[], None]) -> None:
        """Creates the sliders, at first around the whole scene.

        Args:
            browser: the browser that shows them.
            scene: the scene that is cropped.
            changed: called after the box has changed.
        """
        self._browser, self._changed = browser, changed
        self._low, self._high = _ends(scene)
        self._outline: viser.LineSegmentsHandle | None = None
        with browser.gui.add_folder("Crop box", expand_by_default=False):
            self._is_on = browser.gui.add_checkbox("Crop", False, hint="Hide what is outside the box")
            self._sliders = [
                browser.gui.add_multi_slider(
                    axis, low, high, (high - low) / _STEPS, (low, high), hint="A handle at its end does not cut"
                )
                for axis, low, high in zip("XYZ", self._low.tolist(), self._high.tolist(), strict=True)
            ]
        self._is_on.on_update(self._on_choice)
        for slider in self._sliders:
            slider.on_update(self._on_choice)

    @property
    def box(self) -> Box | None:
        """The box; None: everything is shown."""
        if not self._is_on.value:
            return None
        low, high = self._corners
        steps = 0.5 * (self._high - self._low) / _STEPS
        return Box(
            tuple(np.where(low < self._low + steps, -np.inf, low).tolist()),
            tuple(np.where(high > self._high - steps, np.inf, high).tolist()),
        )

    @property
    def _corners(self) -> tuple[Float64, Float64]:
        low, high = np.array([slider.value for slider in self._sliders], np.float64).T
        return low, high

    def _on_choice(self, event: Any) -> None:
        if self._outline is not None:
            self._outline.remove()
            self._outline = None
        if self._is_on.value:
            self._outline = self._browser.scene.add_line_segments(
                "/crop box", _edges(*self._corners), _COLOR, thickness=1.5, thickness_units="screen"
            )
        self._changed()


def _centers(scene: Spheres | Gaussians) -> Any:
    return scene.means if isinstance(scene, Gaussians) else scene.positions


def _ends(scene: Spheres | Gaussians) -> tuple[Float64, Float64]:
    """Returns the ends [3] of the sliders, around nearly all of the scene."""
    centers = _centers(scene).reshape(-1, 3).astype(np.float64)
    low, high = np.percentile(centers, [_STRAYS_PERCENT, 100 - _STRAYS_PERCENT], axis=0)
    margin = np.maximum(0.05 * (high - low), 1e-3)
    return low - margin, high + margin


def _edges(low: Float64, high: Float64) -> Any:
    """Returns [12, 2, 3], the ends of a box's edges."""
    corners = np.array(list(product((0, 1), repeat=3)))
    pairs = [(a, b) for a, b in product(corners, repeat=2) if (b - a).sum() == 1 and ((b - a) >= 0).all()]
    return (low + np.array(pairs) * (high - low)).astype(np.float32)
