"""Joints of a robot, and how each follows from the numbers that a caller sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lumigrad.client.arrays import Float64
from lumigrad.client.errors import InvalidArgument


@dataclass(frozen=True)
class Mimic:
    """A joint that follows another: value = multiplier * other + offset."""

    joint: str
    multiplier: float
    offset: float


@dataclass(frozen=True, eq=False)
class Joint:
    """How one link sits on another.

    Attributes:
        name: of the joint.
        kind: "fixed", "revolute", "continuous", "prismatic" or one that nothing can be done with.
        parent: link that carries it.
        child: link that it carries.
        origin: [4, 4] joint frame -> parent's frame, where the joint's value is 0; metres.
        axis: [3] in the joint frame, unit length where the joint moves.
        limits: lowest and highest value, radians or metres; infinite where there is none.
        mimic: the joint that it follows, if it does.
    """

    name: str
    kind: str
    parent: str
    child: str
    origin: Float64
    axis: Float64
    limits: tuple[float, float]
    mimic: Mimic | None = None

    @property
    def moves(self) -> bool:
        """Whether it has a value."""
        return self.kind != "fixed"


@dataclass(frozen=True)
class Drive:
    """A joint's value = multiplier * q[column] + offset; without a column it stands at `offset`."""

    column: int | None
    multiplier: float
    offset: float


class Drives:
    """Which number of q moves which joint."""

    def __init__(self, joints: Sequence[Joint], columns: Sequence[str], locked: Mapping[str, float]) -> None:
        """Checks the names.

        Args:
            joints: all joints of the robot.
            columns: names of the joints that q sets, in the order of q.
            locked: joints that stand still, and where: radians or metres.

        Raises:
            InvalidArgument: names that are not those of joints that move, or that come twice.
        """
        self._joints = {joint.name: joint for joint in joints if joint.moves}
        self._columns = {name: index for index, name in enumerate(columns)}
        self._locked = locked
        moving = ", ".join(self._joints)
        for argument, names in (("joints", columns), ("locked", locked)):
            for name in names:
                if name not in self._joints:
                    raise InvalidArgument.of(argument, f"expected joints that move ({moving}), got {name!r}")
        if len(self._columns) != len(columns):
            raise InvalidArgument.of("joints", f"expected names that differ, got {', '.join(columns)}")
        for name in columns:
            mimic = self._joints[name].mimic
            if mimic is not None:
                raise InvalidArgument.of(
                    "joints", f"expected joints with a value of their own, but {name!r} follows {mimic.joint!r}"
                )

    def of(self, name: str) -> Drive:
        """What moves a joint.

        Raises:
            InvalidArgument: nothing does.
        """
        return self._of(name, ())

    def _of(self, name: str, followers: tuple[str, ...]) -> Drive:
        if name in followers:
            raise InvalidArgument.of("urdf", f"expected joints that follow others, but {name!r} follows itself")
        if name in self._locked:
            return Drive(None, 0.0, float(self._locked[name]))
        if name in self._columns:
            return Drive(self._columns[name], 1.0, 0.0)
        joint = self._joints.get(name)
        if joint is None:
            raise InvalidArgument.of(
                "urdf",
                f"expected joint {followers[-1]!r} to follow (mimic) a joint that moves, but it follows {name!r}",
            )
        if joint.mimic is None:
            raise InvalidArgument.of(
                "joints",
                f"expected every joint that moves in joints or in locked, but {name!r} is in neither; "
                f"pass e.g. locked={{{name!r}: 0.0}}",
            )
        other = self._of(joint.mimic.joint, (*followers, name))
        factor = joint.mimic.multiplier
        return Drive(other.column, factor * other.multiplier, factor * other.offset + joint.mimic.offset)

    def limits(self) -> Float64:
        """[dof, 2] lowest and highest value of each number of q."""
        return np.array([self._joints[name].limits for name in self._columns], np.float64).reshape(-1, 2)
