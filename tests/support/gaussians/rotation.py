"""Rotation matrices for test cameras."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def turned(x: float, y: float, z: float) -> NDArray[np.float64]:
    """A rotation about the three axes, one after another."""
    matrix = np.eye(3)
    for axis, angle in enumerate((x, y, z)):
        first, second = (axis + 1) % 3, (axis + 2) % 3
        step = np.eye(3)
        step[first, first] = step[second, second] = np.cos(angle)
        step[second, first], step[first, second] = np.sin(angle), -np.sin(angle)
        matrix = step @ matrix
    return matrix
