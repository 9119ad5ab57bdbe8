"""The defaults of world.proto, filled in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from google.protobuf.message import Message

from lumigrad.protos.dtypes import Array
from lumigrad.v1 import world_pb2

IDENTITY = (0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)


def name_of(obstacle: world_pb2.Obstacle, index: int) -> str:
    """Return the name of obstacle `index` of a world."""
    return obstacle.name or str(index)


def pose_of(obstacle: world_pb2.Obstacle) -> tuple[float, ...]:
    """Return the values of an obstacle's pose, as given: x y z, metres, and the quaternion w x y z."""
    return tuple(obstacle.pose.values) if obstacle.HasField("pose") else IDENTITY


def sign_of(obstacle: world_pb2.Obstacle) -> world_pb2.SignPolicy:
    """Return the number of an obstacle's sign policy."""
    return obstacle.sign or world_pb2.SIGN_POLICY_AUTO


def environments_of(world: world_pb2.World) -> int:
    """Return the number of environments of a world."""
    return world.environments or 1 + max((obstacle.environment for obstacle in world.obstacles), default=0)


def numbers_of(messages: Sequence[Message], count: int) -> Array | None:
    """Return the numbers [N, `count`] float64 of messages such as Pose, whose only field, number 1, has doubles.

    They are read from the serialised bytes, since a world has many. Returns None if a message has another number of
    them.
    """
    head = bytes((1 << 3 | 2, 8 * count))
    length = len(head) + 8 * count
    encoded = [message.SerializeToString() for message in messages]
    if any(len(each) != length or not each.startswith(head) for each in encoded):
        return None
    rows = np.frombuffer(b"".join(encoded), np.uint8) if encoded else np.empty(0, np.uint8)
    return np.asarray(rows.reshape(-1, length)[:, len(head) :].copy().view("<f8"))


def poses_of(obstacles: Sequence[world_pb2.Obstacle]) -> Array | None:
    """Return the poses [N, 7] float64 of obstacles, as given; None if one does not have 7 numbers."""
    identity = world_pb2.Pose(values=IDENTITY)
    return numbers_of([it.pose if it.HasField("pose") else identity for it in obstacles], len(IDENTITY))
