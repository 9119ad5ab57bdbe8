"""Meshes are built beside the device's thread, which answers other calls meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import grpc
import numpy as np
import pytest

from support.calls.distance_calls import DistanceClient, mesh_obstacle, points, world_of
from support.calls.raw_calls import Array, RawClient, failure
from support.workers.worker import WorkerProcess, worker_fixture

SIDE = 400
BUSY = "lumigrad_device_busy_seconds_total"
process = worker_fixture("--lane-mib", "0")


@pytest.fixture(scope="module")
def client(process: WorkerProcess) -> Iterator[RawClient]:
    with process.channel() as channel:
        yield RawClient("", channel=channel)


def sheet(height: float) -> dict[str, Array]:
    """An open surface of 320,000 triangles, with data for winding numbers."""
    line = np.linspace(0, 1, SIDE + 1, dtype=np.float32)
    flat = np.stack(np.meshgrid(line, line, indexing="ij"), -1).reshape(-1, 2)
    corner = np.arange(SIDE * (SIDE + 1)).reshape(SIDE, SIDE + 1)[:, :-1].ravel()
    over = corner + SIDE + 1
    return {
        "vertices": np.c_[flat, height * np.sin(20 * flat[:, 0])].astype(np.float32),
        "faces": np.r_[np.c_[corner, corner + 1, over], np.c_[corner + 1, over + 1, over]].astype(np.int32),
    }


def share_of_device(process: WorkerProcess, work: Callable[[], object]) -> float:
    """The least share of the time of some work, done three times, during which the device's thread was busy."""
    shares = []
    for _ in range(3):
        busy, started = process.metric(BUSY), time.monotonic()
        work()
        shares.append((process.metric(BUSY) - busy) / (time.monotonic() - started))
    return min(shares)


def test_builds_and_fits_of_meshes_hardly_occupy_the_device(process: WorkerProcess, client: RawClient) -> None:
    heights = iter(np.linspace(0.05, 0.1, 20))
    put = share_of_device(process, lambda: client.put(sheet(next(heights))))
    scene = client.put(sheet(0.2)).scene
    versions = iter(range(1, 10))

    def update() -> None:
        client.update(scene.scene_id, next(versions), {"vertices": sheet(next(heights))["vertices"]})

    fit = share_of_device(process, update)
    assert put < 0.1
    assert fit < 0.2


def test_data_of_a_sign_is_computed_before_a_world_reaches_the_device(
    process: WorkerProcess, client: RawClient
) -> None:
    mesh = client.put(box()).scene.scene_id
    distances = DistanceClient(client)
    auto = distances.put(world_of(mesh_obstacle(mesh))).scene.scene_id
    winding = distances.put(world_of(mesh_obstacle(mesh, sign="SIGN_POLICY_WINDING"))).scene.scene_id
    spheres = points((0.5, 0.5, 0.5), (2.0, 0.5, 0.5))
    for world in (auto, winding):
        np.testing.assert_allclose(distances.query(world, spheres).arrays["distance"].ravel(), [-0.5, 1.0], atol=1e-5)


def box() -> dict[str, Array]:
    corners = np.array([(x, y, z) for x in (0, 1) for y in (0, 1) for z in (0, 1)], np.float32)
    quads = [(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)]
    faces = np.array([(a, *two) for a, b, c, d in quads for two in ((b, c), (c, d))], np.int32)
    return {"vertices": corners, "faces": faces}


def test_a_mesh_that_is_refused_leaves_the_next_its_turn(client: RawClient) -> None:
    for damage in ("index", "number", "area"):
        mesh = box()
        if damage == "index":
            mesh["faces"][3, 1] = 8
        elif damage == "number":
            mesh["vertices"][2, 0] = np.nan
        else:
            mesh["vertices"][:] = 0
        assert failure(lambda: client.put(mesh)).code() == grpc.StatusCode.INVALID_ARGUMENT  # noqa: B023
    assert client.put(box()).scene.count == 12
