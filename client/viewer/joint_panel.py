"""Sliders for a robot's joints and for the time of a trajectory, the same in all browsers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import viser

from lumigrad.client.arrays import Float64
from lumigrad.client.robots import Robot

# Of joints without limits, radians or metres.
_WIDEST = math.pi
_STEPS = 200


class JointPanel:
    """Tells `changed` what the sliders say whenever one of them is moved."""

    def __init__(
        self, server: viser.ViserServer, robot: Robot, trajectory: Float64, changed: Callable[[Float64], None]
    ) -> None:
        """Builds it.

        Args:
            server: whose browsers show it.
            robot: whose joints they are.
            trajectory: [T, dof] joint values; sliders begin at the first.
            changed: called with [dof] joint values.
        """
        self._changed, self._trajectory = changed, trajectory
        # While the sliders follow the trajectory, each of them would tell.
        self._is_following = False
        gui = server.gui
        if len(trajectory) > 1:
            self._step = gui.add_slider("time step", 0, len(trajectory) - 1, 1, 0)
            self._step.on_update(self._on_step)
        with gui.add_folder("joints", expand_by_default=robot.dof <= 8):
            self._sliders = [
                _slider(gui, name, limits, float(value))
                for name, limits, value in zip(robot.joint_names, robot.limits, trajectory[0], strict=True)
            ]
        for slider in self._sliders:
            slider.on_update(self._on_joint)

    @property
    def values(self) -> Float64:
        """[dof]."""
        return np.array([slider.value for slider in self._sliders], np.float64)

    def _on_joint(self, event: Any) -> None:
        if not self._is_following:
            self._changed(self.values)

    def _on_step(self, event: Any) -> None:
        values = self._trajectory[int(self._step.value)]
        self._is_following = True
        try:
            for slider, value in zip(self._sliders, values, strict=True):
                slider.value = min(max(float(value), slider.min), slider.max)  # type: ignore[misc]
        finally:
            self._is_following = False
        self._changed(values)


def _slider(gui: viser.GuiApi, name: str, limits: Float64, value: float) -> viser.GuiSliderHandle[float]:
    low, high = map(float, np.where(np.isfinite(limits), limits, (-_WIDEST, _WIDEST)))
    # Trajectories may leave the limits.
    low, high = min(low, value), max(high, value, low + 1e-3)
    return gui.add_slider(name, low, high, (high - low) / _STEPS, value)
