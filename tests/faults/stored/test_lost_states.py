"""A worker dies between a forward pass and its backward pass: the client has everything computed again.

Tested with and without a spool, for scenes that are stored, were updated, or travel with the call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from lumigrad.client import Client, Mesh, Obstacle, SceneNotFound, World
from lumigrad.client import torch as operators
from support.gaussians.clouds import post
from support.meshes import shapes as mesh_shapes
from support.workers.client_load import CAMERA, client_fixture, cloud
from support.workers.spooling import kill, wait_until_written
from support.workers.worker import WorkerProcess, worker

BOX = mesh_shapes.box((1.0, 1.0, 1.0))
PROBES = np.random.default_rng(0).normal(size=(50, 4)) * (2.0, 2.0, 2.0, 0.0) + (0.0, 0.0, 0.0, 0.1)
ASIDE = (0.5, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)
UPSTREAM = np.random.default_rng(1).normal(size=(CAMERA.height, CAMERA.width, 3))
_PARTS = ("means", "quats", "scales", "opacities", "colors")
# Makes the backward call; returns gradients by name.
Backward = Callable[[], dict[str, np.ndarray]]


@pytest.fixture(scope="module", params=[False, True], ids=["memory", "spool"])
def process(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    spool = ["--spool", str(tmp_path_factory.mktemp("spool"))] if request.param else []
    with worker("--device", "cpu", "--crash-seconds", "0.1", *spool, supervised=True) as started:
        yield started


client = client_fixture("process", retry_s=60)


def has_spool(process: WorkerProcess) -> bool:
    return "--spool" in process.options


def images(client: Client, scene: Any, settings: dict[str, Any], **changes: Any) -> dict[str, Backward]:
    """Retained frames of a scene that is stored, was updated, is updated meanwhile, and travels with the call.

    The stored scene has two more frames, which are differentiated: from the second time on the worker needs no Python.
    """
    stored = client.put(scene)
    frames = {name: client.render(stored, CAMERA, retain=True, **settings) for name in ("stored", "again", "third")}
    for name in ("again", "third"):
        frames[name].backward(UPSTREAM)
    updated = client.update(stored, **changes)
    frames["updated"] = client.render(updated, CAMERA, retain=True, **settings)
    client.update(updated, **{name: value * 0.5 for name, value in changes.items()})
    frames["inline"] = client.render(scene, CAMERA, retain=True, **settings)
    return {name: lambda frame=frame: dict(frame.backward(UPSTREAM)) for name, frame in frames.items()}


def of_spheres(client: Client) -> dict[str, Backward]:
    scene = cloud()
    return images(client, scene, {"max_depth": 10.0, "gamma": 0.1}, colors=scene.colors[::-1].copy())


def of_gaussians(client: Client) -> dict[str, Backward]:
    scene = post()
    return images(client, scene, {}, opacities=scene.tensors["opacities"] * 0.9)


def of_distances(client: Client) -> dict[str, Backward]:
    mesh = client.put(Mesh(BOX.vertices, BOX.faces))
    world = World([Obstacle(mesh, ASIDE, "box"), Obstacle(Mesh(BOX.vertices * 0.5, BOX.faces))])
    stored = client.put(world)
    found = {"mesh": client.query(mesh, PROBES, retain=True), "inline": client.query(world, PROBES, retain=True)}
    found["stored"] = client.query(stored, PROBES, retain=True)
    updated = client.update(stored, enabled={"box": False})
    found["updated"] = client.query(updated, PROBES, retain=True)
    client.update(updated, enabled={"box": True})
    upstream = np.ones(len(PROBES))
    return {name: lambda one=one: dict(one.backward(distance=upstream)) for name, one in found.items()}


def of_operators(client: Client) -> dict[str, Backward]:
    """The PyTorch operators, by name."""

    def leaves(tensors: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
        return {name: torch.tensor(array, dtype=torch.float32).requires_grad_() for name, array in tensors.items()}

    def gradients(outputs: torch.Tensor, inputs: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
        found = torch.autograd.grad(outputs.sin().sum(), list(inputs.values()))
        return {name: gradient.numpy() for name, gradient in zip(inputs, found, strict=True)}

    size = {"width": CAMERA.width, "height": CAMERA.height, "client": client}
    balls = leaves(dict(cloud().tensors))
    spheres = operators.render_spheres(*balls.values(), CAMERA, gamma=0.1, max_depth=10.0, **size).color
    parts = leaves(dict(post().tensors))
    views = torch.eye(4)[None] + torch.tensor([[[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 5.0], [0, 0, 0, 0]]])
    lens = torch.tensor([[[60.0, 0, 32], [0, 60, 24], [0, 0, 1]]])
    means, quats, scales, opacities, colors = (parts[name] for name in _PARTS)
    splats = operators.render_gaussians(means, quats, scales, opacities, colors, views, lens, **size).color
    probes = leaves({"spheres": PROBES.reshape(1, 1, -1, 4)})
    world = World([Obstacle(Mesh(BOX.vertices, BOX.faces))])
    distance = operators.mesh_distance(probes["spheres"], world, client=client).distance
    return {
        "spheres": lambda: gradients(spheres, balls),
        "gaussians": lambda: gradients(splats, parts),
        "distances": lambda: gradients(distance, probes),
    }


def of_all(client: Client) -> dict[tuple[str, str], Backward]:
    """All backward calls, by their maker and name."""
    makers = (of_spheres, of_gaussians, of_distances, of_operators)
    return {(make.__name__, name): backward for make in makers for name, backward in make(client).items()}


def test_gradients_are_those_without_the_fault(process: WorkerProcess, client: Client) -> None:
    expected = {name: backward() for name, backward in of_all(client).items()}
    calls = of_all(client)
    if has_spool(process):
        wait_until_written(process)
    kill(process)
    for name, backward in calls.items():
        found = backward()
        assert found.keys() == expected[name].keys() and found
        for key, array in found.items():
            assert np.array_equal(array, expected[name][key]), (name, key)
            assert np.any(array), (name, key)
    # The lost states were computed again, since those of a dead worker are gone.
    assert process.metric("lumigrad_context_lookups_total", result="lost") == len(calls)


def test_gradients_are_those_without_the_fault_also_when_the_worker_dies_at_work(
    process: WorkerProcess, client: Client
) -> None:
    calls = of_spheres(client)
    expected = {name: backward() for name, backward in calls.items()}
    found: dict[str, dict[str, np.ndarray]] = {}

    def call() -> None:
        for name, backward in calls.items():
            for _ in range(5):
                found[name] = backward()

    caller = threading.Thread(target=call)
    caller.start()
    kill(process)
    caller.join(150)
    assert found.keys() == expected.keys()
    for name, gradients in found.items():
        for key, array in gradients.items():
            assert np.array_equal(array, expected[name][key]), (name, key)


def test_gradients_are_of_the_meshes_that_a_world_showed_at_the_query(process: WorkerProcess, client: Client) -> None:
    plain = Mesh(BOX.vertices * 0.7, BOX.faces)
    handle = client.put(Mesh(BOX.vertices * 0.9, BOX.faces))
    world = client.put(World([Obstacle(handle, ASIDE), Obstacle(plain)]))
    upstream = np.ones(len(PROBES))
    found = [client.query(world, PROBES, retain=True)]
    for factor in (0.8, 1.2):
        handle = client.update(handle, vertices=BOX.vertices * factor)
        found.append(client.query(world, PROBES, retain=True))
    client.update(client.put(plain), vertices=BOX.vertices * 0.6)
    last = client.query(world, PROBES)
    expected = [one.backward(distance=upstream, wanted=("spheres", "poses")) for one in found]
    assert len({gradients.spheres.tobytes() for gradients in expected}) == len(found)
    for fault in (lambda one: one.release(), lambda one: kill(process) if one is found[0] else None):
        for one, gradients in zip(found, expected, strict=True):
            fault(one)
            again = one.backward(distance=upstream, wanted=("spheres", "poses"))
            assert np.array_equal(again.spheres, gradients.spheres) and np.array_equal(again.poses, gradients.poses)
        assert np.array_equal(client.query(world, PROBES).distance, last.distance)


def test_what_nobody_can_make_again_is_an_error(process: WorkerProcess, client: Client) -> None:
    scene = cloud(50)
    handle = client.get(client.put(scene).scene_id)
    frame = client.render(handle, CAMERA, retain=True, max_depth=10)
    expected = frame.backward(UPSTREAM)
    if has_spool(process):
        wait_until_written(process)
    kill(process)
    if has_spool(process):
        for name, array in frame.backward(UPSTREAM).items():
            assert np.array_equal(array, expected[name]), name
        return
    with pytest.raises(SceneNotFound) as lost:
        frame.backward(UPSTREAM)
    assert lost.value.scene_id == handle.scene_id
