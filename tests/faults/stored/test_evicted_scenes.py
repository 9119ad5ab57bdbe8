"""Calls find their scenes although others evict them meanwhile: scenes in the spool are not missing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lumigrad.client import Client, Mesh, Obstacle, ResourceExhausted, World
from lumigrad.protos.streams import frames_of
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.v1 import scene_pb2
from support.calls.distance_calls import grid, mesh_arrays, mesh_obstacle, world_of
from support.calls.raw_calls import SECONDS, RawClient, sphere_cloud
from support.meshes import shapes
from support.workers.slow_render import wait_for
from support.workers.spooling import PROBES, spooling, spooling_fixture, wait_until_written
from support.workers.worker import WorkerProcess

# Number and size of other scenes that fill the memory.
SCENES, COUNT = 4, 40_000
BOX = shapes.box((1.0, 1.0, 1.0))


def memory(mib: int) -> tuple[str, ...]:
    """The options of a worker with this much memory for scenes."""
    return "--scene-mib", str(mib), "--max-payload-mib", str(mib), "--transit-mib", "32", "--stall-seconds", "600"


process = spooling_fixture(*memory(4))


def interrupted(
    process: WorkerProcess, client: RawClient, call: Callable[..., Any], header: Any, payload: PayloadWriter
) -> Any:
    """The reply to a call between whose header and payload other scenes evict all earlier ones."""
    may_go_on = threading.Event()

    def frames() -> Iterator[Any]:
        first, *others = frames_of(header, payload)
        yield first
        may_go_on.wait(SECONDS)
        yield from others

    with ThreadPoolExecutor(1) as pool:
        reply = pool.submit(call, frames(), timeout=SECONDS)
        try:
            wait_for(process, "lumigrad_calls_in_progress", 1)
            for number in range(SCENES):
                client.put(sphere_cloud(COUNT, seed=int(np.random.default_rng().integers(1 << 30)) + number))
            wait_until_written(process)
        finally:
            may_go_on.set()
        return reply.result()


def test_a_scene_that_is_evicted_during_its_update_is_updated(process: WorkerProcess, client: RawClient) -> None:
    count = 100_000
    scene_id = client.put(sphere_cloud(count)).scene.scene_id
    wait_until_written(process)
    payload, colors = PayloadWriter(), np.full((count, 3), 0.25, np.float32)
    header = scene_pb2.UpdateRequest(scene_id=scene_id, expected_version=1)
    header.tensors.add(name="colors", tensor=payload.add(colors))
    assert interrupted(process, client, client.scene_stub.Update, header, payload).scene.version == 2
    reply, arrays = client.get(scene_id=scene_id, with_tensors=True)
    assert reply.info.version == 2
    np.testing.assert_array_equal(arrays["colors"], colors)


def test_a_world_whose_mesh_is_evicted_while_it_arrives_is_stored(process: WorkerProcess, client: RawClient) -> None:
    mesh_id = client.put(mesh_arrays(BOX)).scene.scene_id
    wait_until_written(process)
    payload = PayloadWriter()
    values = np.ones((80, 80, 80), np.float32)
    header = scene_pb2.PutRequest(scene=world_of(mesh_obstacle(mesh_id), grid(values, 0.1, payload)))
    scene_id = interrupted(process, client, client.scene_stub.Put, header, payload).scene.scene_id
    assert client.get(scene_id=scene_id)[0].info.kind == "world"
    # The world keeps its mesh.
    assert client.get(scene_id=mesh_id)[0].info.kind == "mesh"


def test_a_world_whose_meshes_do_not_fit_now_stays_in_the_spool(tmp_path: Path) -> None:
    torus = shapes.torus(96, 48)
    with spooling(tmp_path, *memory(8)) as process, Client(process.target) as client:
        meshes = [client.put(Mesh(torus.vertices * size, torus.faces)) for size in (1.0, 1.5)]
        assert sum(mesh.nbytes for mesh in meshes) > 1 << 20
        world = client.put(World([Obstacle(mesh, name=str(index)) for index, mesh in enumerate(meshes)]))
        expected = client.query(world, PROBES).distance
        wait_until_written(process)
    with (
        spooling(tmp_path, *memory(1)) as process,
        Client(process.target, retry_s=0) as client,
        pytest.raises(ResourceExhausted, match="evicted"),
    ):
        client.query(client.get(world.scene_id), PROBES)
    with spooling(tmp_path, *memory(8)) as process, Client(process.target) as client:
        np.testing.assert_array_equal(client.query(client.get(world.scene_id), PROBES).distance, expected)
