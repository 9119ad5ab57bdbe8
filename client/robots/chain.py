"""Forward kinematics: where the links are, as matrix products on NumPy arrays or torch tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lumigrad.client.arrays import Float64
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.robots.joint import Drive, Drives, Joint
from lumigrad.client.robots.numbers import like, module_of
from lumigrad.client.robots.transforms import turns


@dataclass(frozen=True, eq=False)
class Frame:
    """A frame that is fixed to a joint's.

    Attributes:
        joint: index of the joint among those that move, + 1; 0: the base.
        matrix: [4, 4] frame -> joint's frame behind its motion, or base frame.
    """

    joint: int
    matrix: Float64


@dataclass(frozen=True, eq=False)
class _Moving:
    """A joint that q moves, and the frame in which it moves."""

    joint: Joint
    drive: Drive
    frame: Frame


class Chain:
    """The joints between a base link and all links that it carries, each after the one that carries it.

    Attributes:
        frames: of the links by name, the base first.
    """

    def __init__(self, base_link: str, joints: Sequence[Joint], drives: Drives) -> None:
        """Walks from the base to the tips.

        Args:
            base_link: name of the link in whose frame the others are placed.
            joints: of the whole robot, in any order.
            drives: what moves them; those below the base must be driven.

        Raises:
            InvalidArgument: a joint that cannot be driven, or a link that two joints carry.
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
                        "urdf", f"expected a tree, but joint {joint.name!r} carries link {joint.child!r} once more"
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
        """The child's; a joint that q moves gets an index."""
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
        """Where the joints' frames are.

        Args:
            q: [.., dof] joint values, radians and metres.
            base: [4, 4] base frame -> world.

        Returns:
            Rotation [.., 3, 3] and translation [.., 3] of the base, then of each joint that moves behind its motion;
            joint -> world.
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
    """[4, 4] of a joint that stands still at a value."""
    matrix = np.eye(4)
    if joint.kind == "prismatic":
        matrix[:3, 3] = value * joint.axis
    else:
        matrix[:3, :3] = turns(joint.axis[None], np.array([value]))[0]
    return matrix
