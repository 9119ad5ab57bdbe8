"""The defaults of world.proto, filled in."""

from __future__ import annotations

from lumigrad.v1 import world_pb2

IDENTITY = (0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)


def name_of(obstacle: world_pb2.Obstacle, index: int) -> str:
    """The name of obstacle `index` of a world."""
    return obstacle.name or str(index)


def pose_of(obstacle: world_pb2.Obstacle) -> tuple[float, ...]:
    """The values of its pose, as given: x y z, metres, and the quaternion w x y z."""
    return tuple(obstacle.pose.values) if obstacle.HasField("pose") else IDENTITY


def sign_of(obstacle: world_pb2.Obstacle) -> world_pb2.SignPolicy:
    """The number of its sign policy."""
    return obstacle.sign or world_pb2.SIGN_POLICY_AUTO


def environments_of(world: world_pb2.World) -> int:
    """The number of its environments."""
    return world.environments or 1 + max((obstacle.environment for obstacle in world.obstacles), default=0)
