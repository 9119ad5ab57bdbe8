"""A handle always names one version of one scene: no later worker lets it stand for anything else."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
from grpc_health.v1 import health_pb2

from lumigrad.client import Client, Mesh, Obstacle, SceneNotFound, World
from support.meshes import shapes as mesh_shapes
from support.workers.client_load import CAMERA, cloud
from support.workers.worker import WorkerProcess, worker_fixture

BOX = mesh_shapes.box((1.0, 1.0, 1.0))
PROBE = np.array([[0.0, 0.0, 1.5, 0.1]])
# Crashes are soon forgotten, so the next worker need not wait.
process = worker_fixture("--crash-seconds", "0.1", supervised=True)


def replace_worker(process: WorkerProcess) -> None:
    restarts = process.log.count("restarts=")
    os.kill(process.worker_pid, signal.SIGKILL)
    process.wait_for_log("restarts=", count=restarts + 1)
    process.wait_for_health(health_pb2.HealthCheckResponse.SERVING)


def test_a_version_of_a_former_worker_is_nobody_elses(process: WorkerProcess) -> None:
    scene = cloud()
    with Client(process.target, retry_s=60) as alice, Client(process.target, retry_s=60) as bob:
        mine = alice.update(alice.put(scene), colors=np.zeros_like(scene.colors))
        expected = alice.render(mine, CAMERA).color
        replace_worker(process)
        # The same content and the same number of updates, but another image.
        theirs = bob.update(bob.put(scene), colors=np.ones_like(scene.colors))
        assert not np.array_equal(bob.render(theirs, CAMERA).color, expected)
        assert np.array_equal(alice.render(mine, CAMERA).color, expected)
        assert mine.scene_id != theirs.scene_id


def test_a_mesh_of_a_former_worker_is_nobody_elses(process: WorkerProcess) -> None:
    box = Mesh(BOX.vertices, BOX.faces)
    with Client(process.target, retry_s=60) as alice, Client(process.target, retry_s=60) as bob:
        mine = alice.update(alice.put(box), vertices=BOX.vertices * 0.5)
        world = alice.put(World([Obstacle(mine)]))
        named = alice.get(world.scene_id)
        expected = [alice.query(shown, PROBE).distance for shown in (mine, world)]
        replace_worker(process)
        theirs = bob.put(World([Obstacle(bob.update(bob.put(box), vertices=BOX.vertices * 2))]))
        assert bob.query(theirs, PROBE).distance != expected[0]
        # A client without a copy learns that the mesh is gone, and does not get another client's version of it.
        with pytest.raises(SceneNotFound):
            alice.query(named, PROBE)
        for shown, distance in zip((mine, world), expected, strict=True):
            assert np.array_equal(alice.query(shown, PROBE).distance, distance)


def test_a_name_that_was_given_up_is_never_given_out_again(process: WorkerProcess) -> None:
    scene = cloud()
    with Client(process.target, retry_s=60) as client:
        names = set()
        for _ in range(3):
            handle = client.put(scene)
            names.add(handle.scene_id)
            client.delete(handle)
        assert len(names) == 3
