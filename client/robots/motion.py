"""Spheres over time as a value, from files of points, spheres or robots."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np

from lumigrad.client.base.arguments import file_path
from lumigrad.client.base.arrays import Float64
from lumigrad.client.base.cautions import warn_caller
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.formats.number_files import NUMBER_SUFFIXES, read_numbers
from lumigrad.client.robots import Robot
from lumigrad.client.robots.chain import SLACK
from lumigrad.client.values.rotations import IDENTITY

# Columns of spheres by their names.
_PLACES = {"x": 0, "y": 1, "z": 2, "r": 3, "radius": 3}


@dataclass(frozen=True, eq=False)
class Motion:
    """S spheres at T time steps.

    Attributes:
        spheres: [T, S, 4] centres x y z and radii, metres; a negative radius disables a sphere.
        names: name of each sphere's link; empty: no names.
        is_trajectory: whether time steps were given; otherwise T is 1.
    """

    spheres: Float64
    names: tuple[str, ...] = ()
    is_trajectory: bool = False

    def __post_init__(self) -> None:
        if not np.isfinite(self.spheres).all():
            step, sphere, _ = np.argwhere(~np.isfinite(self.spheres))[0]
            row = self.spheres[step, sphere].tolist()
            raise InvalidArgument.of("spheres", f"expected finite numbers, got {row} for sphere {sphere}, step {step}")

    @staticmethod
    def of_numbers(values: Float64, *, radius: float = 0.0, scale: float = 1.0) -> Motion:
        """Creates a motion from an array.

        Args:
            values: [S, 3] points or [S, 4] spheres, or [T, S, 3 | 4] along a trajectory.
            radius: radius of points, metres.
            scale: metres per unit of the values.
        """
        if values.ndim not in (2, 3) or values.shape[-1] not in (3, 4) or 0 in values.shape:
            raise InvalidArgument.of(
                "spheres",
                "expected points [N, 3] or spheres [N, 4], or a trajectory [T, N, 3] or [T, N, 4] of them, "
                f"got {list(values.shape)}",
            )
        rows = values.reshape(-1, *values.shape[-2:]) * scale
        if rows.shape[-1] == 3:
            rows = np.concatenate([rows, np.full((*rows.shape[:2], 1), radius)], axis=-1)
        return Motion(rows, is_trajectory=values.ndim == 3)

    @staticmethod
    def of_robot(robot: Robot, joints: Any = None) -> Motion:
        """Creates a motion of a robot's spheres.

        Args:
            robot: the robot.
            joints: as for `joint_values`.
        """
        q = joint_values(robot, joints)
        rows = robot.spheres(q.reshape(-1, robot.dof))
        return Motion(rows, robot.sphere_links, q.ndim == 2)

    @staticmethod
    def load(
        path: str | PathLike[str],
        *,
        urdf: str | PathLike[str] | None = None,
        joints: Any = None,
        base: Any = None,
        radius: float | None = None,
        scale: float | None = None,
    ) -> Motion:
        """Reads points, spheres, or a robot's spheres.

        Args:
            path: numbers as in `of_numbers` (.npy, .npz with an array "spheres", .csv, .txt, whose first line, or
                a comment above the first row, may name the columns x, y, z, r), or a robot's spheres in cuRobo's YAML
                layout, which need a URDF.
            urdf: URDF file of the robot.
            joints: as for `joint_values`.
            base: pose of the robot's base in the world: [7] x y z (metres) and the quaternion w x y z; or [3], [4, 4];
                None: at the origin.
            radius: radius of points, metres; None: 0. Spheres and robots have their own.
            scale: metres per unit of numbers; None: 1. Robots are in metres.

        Raises:
            InvalidArgument: a damaged file, or an argument that does not apply to its kind.
        """
        path = file_path("spheres", path)
        if path.suffix.lower() in NUMBER_SUFFIXES:
            for name, given in (("urdf", urdf), ("joints", joints), ("base", base)):
                if given is not None:
                    raise InvalidArgument.of(name, f"expected with spheres of a robot (.yml), not with {path}")
            numbers = read_numbers("spheres", path, "spheres", _PLACES, any_unit=scale not in (None, 1.0))
            if radius is not None and numbers.shape[-1:] == (4,):
                raise InvalidArgument.of("radius", f"expected with points; {path} has spheres with radii, leave it out")
            return Motion.of_numbers(numbers, radius=radius or 0.0, scale=1.0 if scale is None else scale)
        if path.suffix.lower() not in (".yml", ".yaml"):
            known = ", ".join((".yml", *NUMBER_SUFFIXES))
            raise InvalidArgument.of("spheres", f"expected a file that ends in one of {known}, got {path}")
        for name, given in (("radius", radius), ("spheres_scale", scale)):
            if given is not None:
                raise InvalidArgument.of(name, f"expected with points or spheres, not with a robot's in {path}")
        if urdf is None:
            raise InvalidArgument.of("urdf", f"expected the robot of {path} as a URDF file, got none")
        return Motion.of_robot(Robot.load(urdf, path, base=IDENTITY if base is None else base), joints)


def joint_values(robot: Robot, joints: Any = None) -> Float64:
    """Returns joint values [dof] or [T, dof], float64.

    Args:
        robot: the robot.
        joints: [dof] joint values or [T, dof] along a trajectory, radians and metres, or a file of them: the array
            "joints" of .npz, or text whose first line may name the joints in any order; None: `Robot.rest`. Warns of
            values beyond the joints' limits.
    """
    if isinstance(joints, (str, PathLike)):
        places = {name.lower(): place for place, name in enumerate(robot.joint_names)}
        joints = read_numbers("joints", joints, "joints", places)
    q = robot.rest if joints is None else np.asarray(joints, np.float64)
    if q.ndim not in (1, 2) or q.shape[-1] != robot.dof or not len(q):
        expected = f"[{robot.dof}] or [T, {robot.dof}] ({', '.join(robot.joint_names)})"
        raise InvalidArgument.of("joints", f"expected values of shape {expected}, got {list(q.shape)}")
    _warn_of_limits(robot, q.reshape(-1, robot.dof))
    return q


def _warn_of_limits(robot: Robot, q: Float64) -> None:
    """Warns of values [T, dof] beyond the limits of their joints, as degrees would be.

    An empty range means no limits: files have 0 and 0 where nobody knew the limits, or the lower limit above the upper
    one for joints that turn freely.
    """
    low, high = robot.limits.T
    beyond = np.argwhere((low < high) & ((q < low - SLACK) | (q > high + SLACK)))
    if len(beyond):
        step, joint = beyond[0]
        limits = f"{low[joint]:g} to {high[joint]:g}"
        text = f"{robot.joint_names[joint]} is at {q[step, joint]:g} in step {step}, beyond its limits of {limits}"
        warn_caller(f"joints: {text}; joint values are radians and metres")
