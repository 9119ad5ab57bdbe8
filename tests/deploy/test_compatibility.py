"""Clients and workers of different versions: earlier calls still work, and newer ones get an error that says so."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lumigrad.client import Client, LumigradError, Mesh
from support.deploy.history import client_of, run_with, that_added, tree
from support.deploy.old_contract import old_worker
from support.workers.mixed_load import CAMERA, FACES, VERTICES, gaussians, spheres
from support.workers.worker import WorkerProcess, worker_fixture

# The contract had spheres and Gaussians before this file, and neither distances, trainings nor shared memory.
BEFORE = "protos/lumigrad/v1/training.proto"
# The first client that asked for distances.
DISTANCES = "client/distances/query.py"

RENDER = """
import json, sys
import numpy as np
from lumigrad.client import Camera, Client, Gaussians, Spheres
import lumigrad.client
random = np.random.default_rng(0)
spheres = Spheres(random.normal(size=(50, 3)), random.random((50, 3)), np.full(50, 0.2))
random = np.random.default_rng(1)
quats = np.tile([1.0, 0, 0, 0], (50, 1))
means, colors = random.normal(size=(50, 3)), random.random((50, 3))
gaussians = Gaussians(means, quats, np.full((50, 3), 0.1), np.full(50, 0.8), colors=colors)
camera = Camera.look_at(eye=(0, -1, -5), target=(0, 0, 0), up=(0, -1, 0), width=64, height=48)
said = {"file": lumigrad.client.__file__}
with Client(sys.argv[1]) as client:
    said["version"] = client.info().version
    for name, scene, wanted in (("spheres", spheres, "positions"), ("gaussians", gaussians, "means")):
        frame = client.render(client.put(scene), camera, retain=True)
        gradients = frame.backward(np.ones_like(frame.color))
        said[name] = [float(frame.color.sum()), float(np.abs(np.asarray(getattr(gradients, wanted))).sum())]
print(json.dumps(said))
"""

QUERY = """
import json, sys
import numpy as np
from lumigrad.client import Client, Mesh
vertices = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], np.float32)
faces = [[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]]
with Client(sys.argv[1]) as client:
    mesh = client.put(Mesh(vertices, faces))
    asked = client.query(mesh, [[0.5, 0.5, 0.5, 0.1]], outputs=("distance",), retain=True)
    gradients = asked.backward(distance=np.ones_like(asked.distance))
    print(json.dumps({"distance": np.asarray(asked.distance).ravel().tolist()}))
"""
present = worker_fixture()


@pytest.fixture(scope="module")
def old_protos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tree(f"{that_added(BEFORE)}^", tmp_path_factory.mktemp("old"), "protos") / "protos"


def test_a_client_from_before_distances_renders_and_differentiates(present: WorkerProcess, tmp_path: Path) -> None:
    site = client_of(f"{that_added(BEFORE)}^", tmp_path)
    said = json.loads(run_with(site, RENDER, present.target))
    assert Path(said["file"]).is_relative_to(site)
    with Client(present.target) as client:
        assert said["version"] == client.info().version
        for name, scene, wanted in (("spheres", spheres(), "positions"), ("gaussians", gaussians(), "means")):
            frame = client.render(scene, CAMERA, retain=True)
            gradients = frame.backward(np.ones_like(frame.color))
            expected = [frame.color.sum(), np.abs(gradients[wanted]).sum()]
            assert said[name] == pytest.approx([float(value) for value in expected], rel=1e-5)


def test_the_first_client_with_distances_queries(present: WorkerProcess, tmp_path: Path) -> None:
    said = json.loads(run_with(client_of(that_added(DISTANCES), tmp_path), QUERY, present.target))
    with Client(present.target) as client:
        asked = client.query(client.put(Mesh(VERTICES, FACES)), [[0.5, 0.5, 0.5, 0.1]], outputs=("distance",))
        assert said["distance"] == pytest.approx(np.asarray(asked.distance).ravel().tolist(), rel=1e-5)


def test_a_present_client_renders_with_a_worker_of_the_old_contract(present: WorkerProcess, old_protos: Path) -> None:
    with old_worker(old_protos, present.target) as target, Client(target) as old, Client(present.target) as new:
        for scene, wanted in ((spheres(), "positions"), (gaussians(), "means")):
            frames = [client.render(client.put(scene), CAMERA, retain=True) for client in (old, new)]
            assert np.array_equal(frames[0].color, frames[1].color)
            gradients = [frame.backward(np.ones_like(frame.color))[wanted] for frame in frames]
            assert np.allclose(*gradients, rtol=1e-5, atol=1e-7)
        assert old.info().version == new.info().version


def test_what_an_old_worker_does_not_know_is_told_as_such(present: WorkerProcess, old_protos: Path) -> None:
    with old_worker(old_protos, present.target) as target, Client(target) as old:
        with pytest.raises(LumigradError):
            old.put(Mesh(2 * VERTICES, FACES))  # a mesh that the worker behind does not have
        with pytest.raises(LumigradError):
            old.trainer(spheres(), [CAMERA], [np.zeros((CAMERA.height, CAMERA.width, 3), np.uint8)])
        with pytest.raises(LumigradError):
            old.render_batch([(spheres(), CAMERA)])
        # The old worker still renders what it knows.
        assert old.render(spheres(), CAMERA).color.any()
