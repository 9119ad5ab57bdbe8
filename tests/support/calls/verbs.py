"""Each kind of call of a client, as a function whose results can be compared."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lumigrad.client import Camera, Client, Cuboid, Gaussians, LumigradError, Mesh, Obstacle, Spheres, World
from support.calls.raw_calls import Array
from support.meshes import shapes as mesh_shapes

Results = Mapping[str, Array]
# Prepares a call of a client, and returns a function that makes the call.
Verb = Callable[[Client], Callable[[], Results]]

CAMERA = Camera.look_at(eye=(0, -1, -5), target=(0, 0, 0), up=(0, -1, 0), width=160, height=120)
COUNT = 3000
_BOX = mesh_shapes.box((1.0, 1.0, 1.0))
WORLD = World([Obstacle(Mesh(_BOX.vertices, _BOX.faces)), Obstacle(Cuboid((1, 1, 1)), (3, 0, 0, 1, 0, 0, 0))])
_ROWS = np.random.default_rng(1).normal(size=(8, 16, 32, 4)).astype(np.float32)
_SEEDS = itertools.count()


def spheres(seed: int = 7) -> Spheres:
    random = np.random.default_rng(seed)
    positions, colors = random.normal(size=(COUNT, 3)), random.random((COUNT, 3))
    return Spheres(positions.astype("f4"), colors.astype("f4"), np.full(COUNT, 0.1, "f4"))


def gaussians(seed: int = 7) -> Gaussians:
    random = np.random.default_rng(seed)
    quats = random.normal(size=(COUNT, 4))
    return Gaussians(
        random.normal(size=(COUNT, 3)).astype("f4"),
        (quats / np.linalg.norm(quats, axis=1, keepdims=True)).astype("f4"),
        np.full((COUNT, 3), 0.05, "f4"),
        np.full(COUNT, 0.5, "f4"),
        colors=random.random((COUNT, 3)).astype("f4"),
    )


def verbs(direct: Client) -> dict[str, Verb]:
    """The kinds of calls by name; `direct` is a client without injected faults."""
    stored, cloud, world = direct.put(spheres()), direct.put(gaussians()), direct.put(WORLD)

    def info(client: Client) -> Callable[[], Results]:
        return lambda: {"engines": np.array(client.info().engines)}

    def put(client: Client) -> Callable[[], Results]:
        scene = spheres(next(_SEEDS) + 1000)

        def call() -> Results:
            handle = client.put(scene)
            tensors = direct.get(handle.scene_id, with_tensors=True).scene.tensors
            direct.delete(handle)
            return {name: np.equal(array, scene.tensors[name]).all() for name, array in tensors.items()}

        return call

    def update(client: Client) -> Callable[[], Results]:
        handle = direct.put(spheres(next(_SEEDS) + 1000))
        colors = np.full((COUNT, 3), 0.25, np.float32)

        def call() -> Results:
            made = client.update(handle, colors=colors)
            now = direct.get(handle.scene_id, with_tensors=True)
            direct.delete(now)
            return {"version": np.array([made.version, now.version]), "colors": now.scene.tensors["colors"]}

        return call

    def get(client: Client) -> Callable[[], Results]:
        return lambda: client.get(stored.scene_id, with_tensors=True).scene.tensors

    def list_(client: Client) -> Callable[[], Results]:
        return lambda: {"there": np.array(stored.scene_id in [handle.scene_id for handle in client.list()])}

    def delete(client: Client) -> Callable[[], Results]:
        handle = direct.put(spheres(next(_SEEDS) + 1000))

        def call() -> Results:
            client.delete(handle)
            return {"gone": np.array(handle.scene_id not in [left.scene_id for left in direct.list()])}

        return call

    def render(client: Client) -> Callable[[], Results]:
        return lambda: client.render(stored, CAMERA, max_depth=10.0)

    def render_inline(client: Client) -> Callable[[], Results]:
        scene = gaussians()
        return lambda: client.render(scene, CAMERA)

    def render_batch(client: Client) -> Callable[[], Results]:
        items = [(stored, CAMERA, {"max_depth": 10.0}), (cloud, CAMERA), (cloud, CAMERA, {"outputs": "depth"})]

        def call() -> Results:
            arrays = {}
            for number, frame in enumerate(client.render_batch(items)):
                if isinstance(frame, LumigradError):
                    raise frame
                arrays.update({f"{number}.{name}": array for name, array in frame.items()})
            return arrays

        return call

    def backward(client: Client) -> Callable[[], Results]:
        frame = client.render(cloud, CAMERA, retain=True)
        return lambda: frame.backward(np.ones_like(frame.color))

    def backward_anew(client: Client) -> Callable[[], Results]:
        frame = client.render(stored, CAMERA, max_depth=10.0)
        return lambda: frame.backward(np.ones_like(frame.color))

    def query(client: Client) -> Callable[[], Results]:
        return lambda: client.query(world, _ROWS, outputs=("distance", "normal"))

    def query_backward(client: Client) -> Callable[[], Results]:
        found = client.query(world, _ROWS, outputs=("cost",), activation_distance=0.2, retain=True)
        return lambda: found.backward(np.ones_like(found.cost))

    def field(client: Client) -> Callable[[], Results]:
        return lambda: {"values": client.field(world, size=(2, 2, 2), voxel_size=0.1).distances}

    every: dict[str, Any] = dict(locals())
    return {
        name.rstrip("_"): make
        for name, make in every.items()
        if callable(make) and name not in ("direct", "stored", "cloud", "world")
    }


def same(left: Results, right: Results) -> bool:
    """Whether results are equal bit by bit."""
    return set(left) == set(right) and all(np.array_equal(left[name], right[name]) for name in left)
