"""A call frees everything it held when it returns or raises, without Python's garbage collector."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import cache

import numpy as np
import pytest

from lumigrad.client import (
    Cancelled,
    Client,
    Cuboid,
    LumigradError,
    Mesh,
    Obstacle,
    SceneHandle,
    Spheres,
    Unavailable,
    World,
)
from lumigrad.client.transport.call import Cancellation
from support.meshes.shapes import torus
from support.training.scenes import gaussian_lesson

# Large enough for shared memory.
LESSON = gaussian_lesson(30_000)


def render(client: Client) -> None:
    client.render(LESSON.scene, LESSON.cameras[0])
    frame = client.render(client.put(LESSON.scene), LESSON.cameras, retain=True)
    frame.backward(color=np.ones_like(frame.color))


def put(client: Client) -> None:
    """Puts new content: the client first asks whether the worker has it."""
    positions = np.random.default_rng().random((30_000, 3))
    handle = client.put(Spheres(positions, positions, positions[:, 0] + 0.1))
    client.delete(client.update(handle, radii=positions[:, 1] + 0.1))


def query(client: Client) -> None:
    client.query(World([Cuboid((1, 1, 1))]), np.ones((10, 20, 200, 4)))


def stream(client: Client) -> None:
    with client.stream(client.put(LESSON.scene)) as frames:
        assert len(list(frames.frames(LESSON.cameras))) == len(LESSON.cameras)


def fail(client: Client) -> None:
    with suppress(LumigradError):
        client.render(SceneHandle("0" * 32, 1, "", "gaussians", 3, 0), LESSON.cameras[0])
    with suppress(LumigradError):
        client.get("0" * 32, with_tensors=True)
    with suppress(LumigradError):
        client.render(LESSON.scene, LESSON.cameras[0], outputs=("absent",))


def miss(client: Client) -> None:
    with suppress(LumigradError):
        client.delete(SceneHandle("0" * 32, 1, "", "gaussians", 3, 0, scene=LESSON.scene))
    with suppress(LumigradError):
        client.update(SceneHandle("0" * 32, 1, "", "gaussians", 3, 0), means=np.zeros((30_000, 3)))
    with suppress(LumigradError):
        client.resume_trainer("0" * 32, "0" * 32)


def cancel(client: Client) -> None:
    cancellation = Cancellation()
    frame = client.render(LESSON.scene, LESSON.cameras, retain=True)
    cancellation.cancel()
    with pytest.raises(Cancelled):
        client._cancelled_by(cancellation).render(LESSON.scene, LESSON.cameras[0])
    with pytest.raises(Cancelled):
        client._cancelled_by(cancellation).put(LESSON.scene)
    with pytest.raises(Cancelled):
        frame._cancelled_by(cancellation).backward(color=np.ones_like(frame.color))


@cache
def lonely(target: str) -> Client:
    """A client of no worker, made once: a client itself is collected by the garbage collector."""
    return Client(target, retry_s=0.1)


def find_nobody(_: Client) -> None:
    for target in ("localhost:1", "localhost:1,localhost:2"):
        with pytest.raises(Unavailable):
            lonely(target).render(LESSON.scene, LESSON.cameras[0])


def train(client: Client) -> None:
    images = LESSON.target_images(client)
    with client.trainer(LESSON.scene, LESSON.cameras, images) as trainer:
        list(trainer.steps(2))
        trainer.scene()


def garbage_of(use: Callable[[Client], None], client: Client) -> set[str]:
    """Returns the classes of the client whose objects are left to the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        use(client)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found = {type(it) for it in gc.garbage}
        return {kind.__qualname__ for kind in found if kind.__module__.startswith("lumigrad")}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.parametrize("use", [render, put, query, stream, fail, miss, cancel, find_nobody, train])
def test_calls_leave_no_garbage(use: Callable[[Client], None], client: Client) -> None:
    use(client)
    # Threads of earlier tests' clients may end meanwhile and leave theirs, but only once.
    assert set.intersection(*(garbage_of(use, client) for _ in range(3))) == set()


def test_a_client_keeps_no_mesh_that_its_user_has_dropped(client: Client) -> None:
    shape, spheres = torus(), np.array([[0.0, 0.0, 1.5, 0.1]])
    mesh = Mesh(shape.vertices, shape.faces)
    client.query(World([Obstacle(mesh)]), spheres)
    world = client.put(World([Obstacle(mesh)]))
    client.query(world, spheres)
    kept = weakref.ref(mesh)
    del mesh, world
    gc.collect()
    assert kept() is None
