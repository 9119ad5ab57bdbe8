"""Poses and trajectories with the methods that AlpaSim's client calls on those of its compiled module `utils_rs`."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.spatial.transform import Rotation, Slerp


class Pose:
    """A rigid transform from a moved frame to a fixed one.

    Attributes:
        vec3: [3] metres.
        quat: [4] x y z w.
    """

    def __init__(self, position: Any, quaternion: Any) -> None:
        self.vec3, self.quat = (np.asarray(each, np.float64) for each in (position, quaternion))

    @staticmethod
    def from_proto(position: Any, quat_wxyz: Any) -> Pose:
        """Converts a pose whose quaternion is in the order of the contract."""
        return Pose(position, np.asarray(quat_wxyz)[[1, 2, 3, 0]])

    def to_proto(self) -> tuple[list[float], list[float]]:
        """The position, and the quaternion w x y z."""
        return self.vec3.tolist(), self.quat[[3, 0, 1, 2]].tolist()

    def __matmul__(self, other: Pose) -> Pose:
        turn = Rotation.from_quat(self.quat)
        return Pose(turn.apply(other.vec3) + self.vec3, (turn * Rotation.from_quat(other.quat)).as_quat())

    def clone(self) -> Pose:
        """A copy."""
        return Pose(self.vec3.copy(), self.quat.copy())


class Trajectory:
    """Poses at times in microseconds; between them, motion is straight and rotation has a constant rate."""

    def __init__(self, timestamps: Any, positions: Any, quaternions: Any) -> None:
        self._times, self._positions = np.asarray(timestamps, np.int64), np.asarray(positions, np.float64)
        self._turns = Slerp(self._times, Rotation.from_quat(quaternions))

    @property
    def time_range_us(self) -> range:
        """The times at which the trajectory has a pose."""
        return range(int(self._times[0]), int(self._times[-1]) + 1)

    def interpolate_pose(self, at_us: int) -> Pose:
        """The pose at a time."""
        position = [np.interp(at_us, self._times, axis) for axis in self._positions.T]
        return Pose(position, self._turns(at_us).as_quat())


class Polyline:
    """Imported by AlpaSim's client, but not used to render."""


class DynamicTrajectory:
    """Imported by AlpaSim's client, but not used to render."""
