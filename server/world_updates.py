"""The changes of obstacles that an Update brings, checked by the header."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lumigrad.kernels import meshes
from lumigrad.server.limits import arguments_of, require
from lumigrad.v1 import scene_pb2

_ANYTHING = meshes.Cuboid((1.0, 1.0, 1.0))


@dataclass(frozen=True)
class Change:
    """Of one obstacle; None: as it is.

    Attributes:
        pose: x y z (metres) qw qx qy qz, object to world.
        enabled: Whether queries see it.
    """

    pose: Sequence[float] | None
    enabled: bool | None


def changes_of(request: scene_pb2.UpdateRequest, numbers: Mapping[str, int]) -> dict[int, Change]:
    """By number of the obstacle; `numbers` are those of the stored world's obstacles by name."""
    require(not request.tensors, "tensors", "none: a world's obstacles are changed by name", len(request.tensors))
    require(len(request.obstacles) > 0, "obstacles", "at least one obstacle", "none")
    require(
        not request.payload_bytes, "payload_bytes", "0, since a change of obstacles has none", request.payload_bytes
    )
    changes: dict[int, Change] = {}
    for index, message in enumerate(request.obstacles):
        where = f"obstacles[{index}]"
        number = numbers.get(message.name)
        require(number is not None, f"{where}.name", "the name of an obstacle of this world", message.name)
        assert number is not None
        require(number not in changes, f"{where}.name", "each name once", message.name)
        pose = None
        if message.HasField("pose"):
            with arguments_of(where):
                pose = meshes.Instance(_ANYTHING, pose=tuple(message.pose.values)).pose
        changes[number] = Change(pose, not message.disabled if message.HasField("disabled") else None)
    return changes
