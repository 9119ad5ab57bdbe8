"""Links and joints, the forward kinematics of a chain, and the spheres fixed to it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from lumigrad.client.base.arguments import number
from lumigrad.client.base.arrays import Float64, to_numpy
from lumigrad.client.base.cautions import warn_caller
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.values.quaternions import quaternions

# Tolerance for joint values rounded beyond a limit, radians or metres.
SLACK = 0.01


def is_tensor(value: Any) -> bool:
    """Whether it is a torch tensor; does not import torch."""
    return type(value).__module__.partition(".")[0] == "torch" or hasattr(value, "requires_grad_")


def module_of(value: Any) -> ModuleType:
    """Returns torch or NumPy, whichever `value` belongs to; sin, cos, stack and so on have the same names in both."""
    return importlib.import_module("torch") if is_tensor(value) else np


def floating(name: str, value: Any) -> Any:
    """Returns a torch tensor as it is, anything else as a NumPy array; other dtypes become the default floating type.

    Raises:
        InvalidArgument: not real numbers.
    """
    if is_tensor(value):
        if value.is_complex():
            raise InvalidArgument.of(name, f"expected real numbers, got {value.dtype}; pass the real part")
        return value if value.is_floating_point() else value.to(module_of(value).get_default_dtype())
    array = to_numpy(name, value)
    if array.dtype.kind not in "fiub":
        raise InvalidArgument.of(name, f"expected numbers, got dtype {array.dtype}; pass a NumPy array or a tensor")
    return array if array.dtype.kind == "f" else array.astype(np.float64)


def like(value: Any, constant: Any) -> Any:
    """Converts a NumPy array to the module, floating type and device of `value`."""
    if is_tensor(value):
        return module_of(value).as_tensor(constant, dtype=value.dtype, device=value.device)
    return np.asarray(constant, value.dtype)


def poses_of(rotation: Any, translation: Any) -> Any:
    """Returns [.., 7], x y z qw qx qy qz, of rotations [.., 3, 3] and translations [.., 3]; differentiable in torch."""
    xp = module_of(rotation)
    quaternion = xp.stack(quaternions(rotation, xp.stack), -1)
    return xp.concatenate([translation, quaternion / (quaternion * quaternion).sum(-1)[..., None] ** 0.5], -1)


def turns(axes: Float64, angles: Any) -> Any:
    """Returns [.., K, 3, 3], rotations about unit axes [K, 3] by angles [.., K], radians; an axis of 0 rotates nothing.

    Uses Rodrigues' formula.
    """
    xp = module_of(angles)
    x, y, z = axes.T
    zero = np.zeros_like(x)
    cross = np.stack([zero, -z, y, z, zero, -x, -y, x, zero], -1).reshape(-1, 3, 3)
    sine, versine = xp.sin(angles)[..., None, None], 1 - xp.cos(angles)[..., None, None]
    return like(angles, np.eye(3)) + sine * like(angles, cross) + versine * like(angles, cross @ cross)


@dataclass(frozen=True)
class Mimic:
    """The mimic of another joint: value = multiplier * other + offset."""

    joint: str
    multiplier: float
    offset: float


@dataclass(frozen=True, eq=False)
class Joint:
    """A joint between two links.

    Attributes:
        name: name of the joint.
        kind: "fixed", "revolute", "continuous", "prismatic" or an unsupported one.
        parent: name of its parent link.
        child: name of its child link.
        origin: [4, 4] joint frame -> parent's frame, where the joint's value is 0; metres.
        axis: [3] in the joint frame, of unit length if the joint is movable.
        limits: lowest and highest value, radians or metres; infinite without limit.
        mimic: the joint that determines its value; None if there is none.
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
        """Whether it is movable."""
        return self.kind != "fixed"


@dataclass(frozen=True)
class Drive:
    """A joint's value = multiplier * q[column] + offset; without a column it is `offset`."""

    column: int | None
    multiplier: float
    offset: float


class Drives:
    """Maps the numbers of q to joints."""

    def __init__(self, joints: Sequence[Joint], columns: Sequence[str], locked: Mapping[str, float]) -> None:
        """Checks the names.

        Args:
            joints: all joints of the robot.
            columns: names of the joints that q sets, in the order of q.
            locked: fixed joints and their values, radians or metres.

        Raises:
            InvalidArgument: names that are repeated, or not those of movable joints.
        """
        self._joints = {joint.name: joint for joint in joints if joint.moves}
        self._columns = {name: index for index, name in enumerate(columns)}
        moving = ", ".join(self._joints)
        for argument, names in (("joints", columns), ("locked", locked)):
            for name in names:
                if name not in self._joints:
                    raise InvalidArgument.of(argument, f"expected movable joints ({moving}), got {name!r}")
        self._locked = {name: self._held(name, value) for name, value in locked.items()}
        if len(self._columns) != len(columns):
            raise InvalidArgument.of("joints", f"expected unique names, got {', '.join(columns)}")
        for name in columns:
            mimic = self._joints[name].mimic
            if mimic is not None:
                raise InvalidArgument.of(
                    "joints", f"expected joints with a value of their own, but {name!r} mimics {mimic.joint!r}"
                )

    def of(self, name: str, followers: tuple[str, ...] = ()) -> Drive:
        """Returns the drive of a joint; `followers` are the mimic joints that led to it.

        Raises:
            InvalidArgument: the joint has no drive.
        """
        if name in followers:
            raise InvalidArgument.of("urdf", f"expected joints that mimic others, but {name!r} mimics itself")
        if name in self._locked:
            return Drive(None, 0.0, float(self._locked[name]))
        if name in self._columns:
            return Drive(self._columns[name], 1.0, 0.0)
        joint = self._joints.get(name)
        if joint is None:
            raise InvalidArgument.of(
                "urdf",
                f"expected joint {followers[-1]!r} to mimic a movable joint, but it mimics {name!r}",
            )
        if joint.mimic is None:
            raise InvalidArgument.of(
                "joints",
                f"expected every movable joint in joints or in locked, but {name!r} is in neither; "
                f"pass e.g. locked={{{name!r}: 0.0}}",
            )
        other = self.of(joint.mimic.joint, (*followers, name))
        factor = joint.mimic.multiplier
        return Drive(other.column, factor * other.multiplier, factor * other.offset + joint.mimic.offset)

    def _held(self, name: str, value: Any) -> float:
        """Returns the value of a locked joint; warns if it is beyond the joint's limits, as degrees would be."""
        found = number(f"locked[{name!r}]", value)
        if not np.isfinite(found):
            raise InvalidArgument.of(f"locked[{name!r}]", f"expected a finite number, got {found}")
        low, high = self._joints[name].limits
        if low < high and not low - SLACK <= found <= high + SLACK:
            text = f"{name} is at {found:g}, beyond its limits of {low:g} to {high:g}"
            warn_caller(f"locked: {text}; joint values are radians and metres")
        return found

    def limits(self) -> Float64:
        """Returns [dof, 2], the lowest and highest value of each number of q."""
        return np.array([self._joints[name].limits for name in self._columns], np.float64).reshape(-1, 2)


@dataclass(frozen=True, eq=False)
class Frame:
    """A frame fixed to a joint.

    Attributes:
        joint: index among the moving joints, + 1; 0: the base.
        matrix: [4, 4] frame -> joint's frame after its motion, or base frame.
    """

    joint: int
    matrix: Float64


@dataclass(frozen=True, eq=False)
class _Moving:
    """A joint that q moves, and its frame before the motion."""

    joint: Joint
    drive: Drive
    frame: Frame


class Chain:
    """The joints below a base link, parents first; `frames` are those of the links by name, the base first."""

    def __init__(self, base_link: str, joints: Sequence[Joint], drives: Drives) -> None:
        """Walks from the base to the tips.

        Args:
            base_link: name of the reference link.
            joints: joints of the whole robot, in any order.
            drives: drives of the joints; those below the base need one.

        Raises:
            InvalidArgument: a joint that cannot be driven, or a link with two parents.
        """
        self.frames: dict[str, Frame] = {base_link: Frame(0, np.eye(4))}
        self._moving: list[_Moving] = []
        carried: dict[str, list[Joint]] = {}
        for joint in joints:
            carried.setdefault(joint.parent, []).append(joint)
        waiting = [base_link]
        while waiting:
            for joint in carried.get(waiting.pop(0), ()):
                if joint.child in self.frames:
                    raise InvalidArgument.of(
                        "urdf", f"expected a tree, but link {joint.child!r} of joint {joint.name!r} has another parent"
                    )
                self.frames[joint.child] = self._frame(joint, drives)
                waiting.append(joint.child)
        values = [moving.drive for moving in self._moving]
        self._columns = [drive.column for drive in values]
        self._multipliers = np.array([drive.multiplier for drive in values])
        self._offsets = np.array([drive.offset for drive in values])
        slides = np.array([moving.joint.kind == "prismatic" for moving in self._moving], bool)
        axes = np.array([moving.joint.axis for moving in self._moving]).reshape(-1, 3)
        self._turning = np.where(slides[:, None], 0.0, axes)
        self._sliding = np.where(slides[:, None], axes, 0.0)
        self._origins = np.array([moving.frame.matrix for moving in self._moving]).reshape(-1, 4, 4)

    def _frame(self, joint: Joint, drives: Drives) -> Frame:
        """Returns the frame of the child link; appends the joint to the moving ones if q moves it."""
        parent = self.frames[joint.parent]
        origin = parent.matrix @ joint.origin
        if not joint.moves:
            return Frame(parent.joint, origin)
        drive = drives.of(joint.name)
        if drive.column is None or drive.multiplier == 0:
            return Frame(parent.joint, origin @ _motion(joint, drive.offset))
        self._moving.append(_Moving(joint, drive, Frame(parent.joint, origin)))
        return Frame(len(self._moving), np.eye(4))

    def forward(self, q: Any, base: Float64) -> list[tuple[Any, Any]]:
        """Computes the forward kinematics.

        Args:
            q: [.., dof] joint values, radians and metres.
            base: [4, 4] base frame -> world.

        Returns:
            Rotation [.., 3, 3] and translation [.., 3], joint -> world, of the base and then of each moving joint after
            its motion.
        """
        xp = module_of(q)
        values = q[..., self._columns] * like(q, self._multipliers) + like(q, self._offsets)
        origins = like(q, self._origins)
        turned = origins[:, :3, :3] @ turns(self._turning, values)
        slid = values[..., None] * like(q, self._sliding)
        moved = (origins[:, :3, :3] @ slid[..., None])[..., 0] + origins[:, :3, 3]
        start, leading = like(q, base), tuple(q.shape[:-1])
        frames = [(xp.broadcast_to(start[:3, :3], (*leading, 3, 3)), xp.broadcast_to(start[:3, 3], (*leading, 3)))]
        for index, moving in enumerate(self._moving):
            rotation, translation = frames[moving.frame.joint]
            step = (rotation @ moved[..., index, :, None])[..., 0]
            frames.append((rotation @ turned[..., index, :, :], step + translation))
        return frames


def _motion(joint: Joint, value: float) -> Float64:
    """Returns [4, 4], the motion of a joint at a fixed value."""
    matrix = np.eye(4)
    if joint.kind == "prismatic":
        matrix[:3, 3] = value * joint.axis
    else:
        matrix[:3, :3] = turns(joint.axis[None], np.array([value]))[0]
    return matrix


class Body:
    """S spheres; `links` are the names of their links, S of them."""

    def __init__(self, spheres: Mapping[str, Float64], chain: Chain) -> None:
        """Moves centres from the links' frames to those of their joints.

        Args:
            spheres: [n, 4] centres and radii, metres, by link.
            chain: the chain of the links.

        Raises:
            InvalidArgument: a link that the chain does not have, or no spheres.
        """
        links: list[str] = []
        rows = [np.zeros((0, 4))]
        for link, own in spheres.items():
            if link not in chain.frames:
                known = ", ".join(chain.frames)
                raise InvalidArgument.of("spheres", f"expected links below the base ({known}), got {link!r}")
            matrix = chain.frames[link].matrix
            links += [link] * len(own)
            rows.append(np.concatenate([own[:, :3] @ matrix[:3, :3].T + matrix[:3, 3], own[:, 3:]], axis=1))
        if not links:
            raise InvalidArgument.of("spheres", "expected at least one sphere, got none")
        self.links = tuple(links)
        stacked = np.concatenate(rows)
        self._radii = stacked[:, 3]
        joints = np.array([chain.frames[link].joint for link in links])
        # The spheres of a joint are transformed together.
        order = np.argsort(joints, kind="stable")
        self._groups = [(int(joint), stacked[joints == joint, :3]) for joint in np.unique(joints)]
        self._places = [int(place) for place in np.argsort(order)]

    def at(self, frames: Sequence[tuple[Any, Any]]) -> Any:
        """Returns [.., S, 4], centres in the world and radii, for frames of `Chain.forward`; of their array type."""
        xp = module_of(frames[0][0])
        groups = []
        for joint, own in self._groups:
            rotation, translation = frames[joint]
            groups.append(like(rotation, own) @ rotation.swapaxes(-1, -2) + translation[..., None, :])
        centres = xp.concatenate(groups, -2)[..., self._places, :]
        radii = xp.broadcast_to(like(centres, self._radii)[:, None], (*centres.shape[:-1], 1))
        return xp.concatenate([centres, radii], -1)
