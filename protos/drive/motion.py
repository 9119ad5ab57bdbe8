"""Rigid poses, and motions between them; float64, metres, right-handed frames."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lumigrad.drive.v1 import sensorsim_pb2

Float64 = npt.NDArray[np.float64]
# Quaternions may be longer or shorter than 1 by this fraction.
LENGTH_TOLERANCE = 0.01
# Quaternions whose cosine is above this are interpolated linearly: their angle would be rounded to 0.
_NEARLY_EQUAL = 1.0 - 1e-12


def unit_quat(values: Any) -> Float64 | None:
    """Return the quaternion [4] with length 1; None if it is not finite or its length is off by more than 1 %."""
    quat = np.asarray(values, np.float64)
    length = float(np.linalg.norm(quat))
    # Not a number fails the comparison.
    if not abs(length - 1.0) <= LENGTH_TOLERANCE:
        return None
    return np.asarray(quat / length)


@dataclass(frozen=True, eq=False)
class RigidPose:
    """A frame in another: p_fixed = R(quat) p_moved + position.

    Attributes:
        position: [3] metres.
        quat: [4] w x y z, of length 1.
    """

    position: Float64
    quat: Float64

    @property
    def rotation(self) -> Float64:
        """R, [3, 3]."""
        w, x, y, z = self.quat
        return np.array(
            [
                [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
                [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
                [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
            ]
        )

    def matrix(self, origin: Float64) -> Float64:
        """Return [4, 4] for column vectors, to the fixed frame with its origin moved to `origin`."""
        matrix = np.eye(4)
        matrix[:3, :3], matrix[:3, 3] = self.rotation, self.position - origin
        return matrix

    def towards(self, other: RigidPose, fraction: float) -> RigidPose:
        """Return the pose after a fraction of the way: positions move straight, rotations evenly the shorter way."""
        position = (1.0 - fraction) * self.position + fraction * other.position
        cosine = float(self.quat @ other.quat)
        end = -other.quat if cosine < 0.0 else other.quat
        weights = 1.0 - fraction, fraction
        if abs(cosine) < _NEARLY_EQUAL:
            angle = math.acos(min(1.0, abs(cosine)))
            weights = math.sin(weights[0] * angle), math.sin(weights[1] * angle)
        quat = weights[0] * self.quat + weights[1] * end
        return RigidPose(position, np.asarray(quat / np.linalg.norm(quat)))

    def message(self) -> sensorsim_pb2.Pose:
        """Return the pose as a message, whose numbers are float32."""
        w, x, y, z = self.quat
        vec = dict(zip("xyz", self.position.tolist(), strict=True))
        return sensorsim_pb2.Pose(vec=sensorsim_pb2.Vec3(**vec), quat=sensorsim_pb2.Quat(w=w, x=x, y=y, z=z))


@dataclass(frozen=True, eq=False)
class Motion:
    """A motion that was recorded at some times.

    Attributes:
        timestamps_us: the times, ascending, at least one.
        poses: the pose at each of them.
    """

    timestamps_us: tuple[int, ...]
    poses: tuple[RigidPose, ...]

    def covers(self, time_us: int) -> bool:
        """Whether a time is not before the first record or after the last one."""
        return self.timestamps_us[0] <= time_us <= self.timestamps_us[-1]

    def at(self, time_us: int) -> RigidPose:
        """Return the pose at a time; outside the records, the nearest one."""
        times = self.timestamps_us
        after = int(np.searchsorted(np.array(times, np.int64), time_us, side="right"))
        if after in (0, len(times)):
            return self.poses[max(after - 1, 0)]
        before = after - 1
        fraction = (time_us - times[before]) / (times[after] - times[before])
        return self.poses[before].towards(self.poses[after], fraction)

    def message(self) -> sensorsim_pb2.Trajectory:
        """Return the motion as a message."""
        records = zip(self.timestamps_us, self.poses, strict=True)
        return sensorsim_pb2.Trajectory(
            poses=[sensorsim_pb2.PoseAtTime(pose=pose.message(), timestamp_us=time) for time, pose in records]
        )
