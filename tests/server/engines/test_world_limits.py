"""Worlds that are refused, by their headers if these suffice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lumigrad.protos.tensors import PayloadWriter
from lumigrad.v1 import scene_pb2, world_pb2
from support.calls.distance_calls import DistanceClient, cuboid, grid, points, pose_of, world_of
from support.calls.raw_calls import assert_refused, failure, violation

ORIGIN = points((0.0, 0.0, 0.0))
MOST = 1 << 14
GRID = np.ones((2, 3, 4), np.float32)
Build = Callable[[PayloadWriter], scene_pb2.Scene]


def of(*obstacles: world_pb2.Obstacle, **fields: Any) -> Build:
    return lambda _: world_of(*obstacles, **fields)


def of_grid(values: Any = GRID, voxel_size: float = 0.1, **fields: Any) -> Build:
    return lambda payload: world_of(cuboid(1, 1, 1), grid(values, voxel_size, payload, **fields))


def grid_that_claims(*shape: int) -> Build:
    """Returns a world with a grid whose shape claims more values than there are."""

    def build(payload: PayloadWriter) -> scene_pb2.Scene:
        obstacle = grid(GRID, 0.1, payload)
        obstacle.grid.distances.shape[:] = shape
        return world_of(cuboid(1, 1, 1), obstacle)

    return build


def grid_without_values(_: PayloadWriter) -> scene_pb2.Scene:
    return world_of(world_pb2.Obstacle(grid=world_pb2.VoxelGrid(voxel_size=1)))


BAD: list[tuple[Build, str, str]] = [
    (of(*[cuboid(1, 1, 1)] * (MOST + 1)), "obstacles", f"expected at most {MOST} obstacles, got at least {MOST + 1}"),
    (of(cuboid(1, 1, 1, environment=MOST)), "environments", f"expected at most {MOST} environments, got {MOST + 1}"),
    (of(environments=MOST + 1), "environments", f"expected at most {MOST} environments, got {MOST + 1}"),
    (of(world_pb2.Obstacle()), "obstacles[0]", "expected mesh_id, cuboid or grid, got none"),
    (of(world_pb2.Obstacle(mesh_id="")), "obstacles[0].mesh_id", "expected the scene_id of a mesh, got none"),
    (of(cuboid(1, 1, 1, name="a"), cuboid(1, 1, 1, name="a")), "obstacles[1].name", "expected a name that occurs once"),
    (of(cuboid(1, 1, 1, name="1"), cuboid(1, 1, 1)), "obstacles[1].name", "expected a name that occurs once"),
    (of(cuboid(1, 1, 1, name="ä" * 51)), "obstacles[0].name", "expected at most 100 bytes"),
    (of(cuboid(1, 1, 1, environment=1), environments=1), "obstacles[0].environment", "expected less than 1, the"),
    (of(cuboid(1, 1, 1, sign=99)), "obstacles[0].sign", "expected a known value, got 99"),
    (of(cuboid(1, 1, 0)), "obstacles[0].cuboid.size", "expected 3 edges above 0"),
    (of(cuboid(1, 1, 1, pose=world_pb2.Pose())), "obstacles[0].pose", "expected 7 finite numbers"),
    (grid_without_values, "obstacles[0].grid.distances", "expected a tensor, got none"),
    (of_grid(GRID.astype(np.int32)), "obstacles[1].grid.distances.dtype", "expected DTYPE_FLOAT32, got DTYPE_INT32"),
    (of_grid(GRID[0]), "obstacles[1].grid.distances.shape", "expected [nx, ny, nz] with at least 2 voxels"),
    (
        grid_that_claims(1 << 13, 1 << 13, 2),
        "obstacles[1].grid.distances",
        f"expected at most {1 << 26} voxels, got {1 << 27}",
    ),
    (of_grid(GRID * np.nan), "obstacles[1].grid.distances", "expected finite values"),
    (of_grid(voxel_size=0.0), "obstacles[1].grid.voxel_size", "expected a value above 0, metres"),
]


@pytest.mark.parametrize(("build", "name", "text"), BAD, ids=[f"{name} {text[9:40]}" for _, name, text in BAD])
def test_a_bad_world_is_refused_whichever_way_it_comes(
    distances: DistanceClient, build: Build, name: str, text: str
) -> None:
    payload = PayloadWriter()
    scene = build(payload)
    description = assert_refused(lambda: distances.put(scene, payload), f"scene.world.{name}", text)
    payload = PayloadWriter()
    inline = build(payload)
    error = failure(lambda: distances.query(inline, ORIGIN, payload=payload))
    assert violation(error) == (f"spec.scene.world.{name}", description)


def test_worlds_at_their_limits_are_taken(distances: DistanceClient) -> None:
    payload = PayloadWriter()
    full = world_of(
        cuboid(1, 1, 1, name="ä" * 50),
        grid(np.ones((4, 5, 5), np.float32), 0.1, payload, pose=pose_of(5, 0, 0)),
        *[cuboid(1, 1, 1, pose=pose_of(9, 0, 0), environment=MOST - 1)] * (MOST - 2),
    )
    scene = distances.put(full, payload).scene
    assert scene.count == MOST
    assert distances.query(scene.scene_id, ORIGIN).arrays["distance"].item() == pytest.approx(-0.5)
