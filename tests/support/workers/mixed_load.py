"""A mix of all kinds of calls, after which each of a worker's metrics has a value."""

from __future__ import annotations

import contextlib

import numpy as np

from lumigrad.client import Camera, Client, Gaussians, Loss, LumigradError, Mesh, Obstacle, Spheres, World

CAMERA = Camera.look_at(eye=(0, -1, -5), target=(0, 0, 0), up=(0, -1, 0), width=64, height=48)
VERTICES = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], np.float32)
FACES = [[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]]


def spheres(seed: int = 0) -> Spheres:
    random = np.random.default_rng(seed)
    return Spheres(random.normal(size=(50, 3)), random.random((50, 3)), np.full(50, 0.2))


def gaussians() -> Gaussians:
    random = np.random.default_rng(1)
    quats = np.tile([1.0, 0, 0, 0], (50, 1))
    means, colors = random.normal(size=(50, 3)), random.random((50, 3))
    return Gaussians(means, quats, np.full((50, 3), 0.1), np.full(50, 0.8), colors=colors)


def use_everything(client: Client) -> None:
    """Makes every kind of call with every kind of scene, and calls that the worker refuses."""
    for scene, change in ((spheres(), "radii"), (gaussians(), "opacities")):
        handle = client.put(scene)
        frame = client.render(client.put(scene), CAMERA, retain=True)
        frame.backward(np.ones_like(frame.color))
        client.render(scene, CAMERA).backward(np.ones_like(frame.color))
        handle = client.update(handle, **{change: getattr(scene, change) / 2})
        client.get(handle.scene_id, with_tensors=True)
        client.delete(handle)
        frame.release()
        black = np.zeros((CAMERA.height, CAMERA.width, 3), np.uint8)
        with client.trainer(scene, [CAMERA], [black], loss=Loss(opacity=0.01)) as trainer:
            list(trainer.steps(2))
    client.render_batch([(spheres(), CAMERA), (gaussians(), CAMERA), (gaussians(), CAMERA, {"outputs": "nothing"})])
    _use_distances(client)
    client.info()
    client.list()
    for refused in (lambda: client.get("nobody"), lambda: client.render(spheres(), CAMERA, outputs=("nothing",))):
        with contextlib.suppress(LumigradError):
            refused()


def _use_distances(client: Client) -> None:
    mesh = client.put(Mesh(VERTICES, FACES))
    world = client.put(World([Obstacle(mesh, name="body")]))
    points = np.random.default_rng(2).normal(size=(4, 2, 8, 4)).astype(np.float32)
    asked = client.query(world, points, outputs=("cost",), activation_distance=0.5, sweep=True, retain=True)
    asked.backward(cost=np.ones_like(asked.cost))
    asked.release()
    client.field(world, size=(1, 1, 1), voxel_size=0.25, max_distance=5.0)
    client.update(mesh, vertices=VERTICES * 1.1)
    client.update(world, enabled={"body": False})
