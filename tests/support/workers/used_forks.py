"""A program that forks after its clients were used, and checks what they can do in the children.

Run as `python -m support.workers.used_forks CASE HOST:PORT`, so that no other library's threads are forked.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import sys
import time
import traceback
from collections.abc import Callable

import numpy as np

from lumigrad.client import Client, LumigradError, Mesh, Obstacle, SceneHandle, World
from lumigrad.client.aio import AsyncClient
from lumigrad.client.base.forks import is_in_grpc
from lumigrad.client.default import default_client
from support.meshes.shapes import torus
from support.workers.client_load import CAMERA, cloud

# The time limit of a child; its stack is printed before it is ended.
SECONDS = 100.0


def in_child(work: Callable[[], None]) -> None:
    """Do something in a forked process."""
    # gRPC's thread of a finished call takes a while to end on a busy machine.
    while any(map(is_in_grpc, sys._current_frames().values())):
        time.sleep(0.01)
    child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == 0, f"the child ended with code {code}"


def connection(target: str) -> None:
    """A child opens a connection of its own; forward states stay the parent's."""
    with Client(target) as client:
        handle = client.put(cloud())
        frame = client.render(handle, CAMERA, retain=True)
        upstream = np.ones_like(frame.color)
        expected = frame.backward(upstream)

        def work() -> None:
            assert np.array_equal(client.render(handle, CAMERA).color, frame.color)
            # The forward state stays in the parent; here it is computed again.
            assert np.array_equal(frame.backward(upstream, release=True).positions, expected.positions)
            frame.release()
            assert client.info().contexts == 1

        for _ in range(3):
            in_child(work)
        assert client.info().contexts == 1
        assert np.array_equal(frame.backward(upstream, release=True).positions, expected.positions)


def default_and_coroutines(target: str) -> None:
    """The default client and one for coroutines go on in a child and in the parent."""
    os.environ["LUMIGRAD_TARGET"] = target
    expected = default_client().render(cloud(), CAMERA).color
    client = AsyncClient(target)

    async def render() -> None:
        assert np.array_equal((await client.render(cloud(), CAMERA)).color, expected)

    asyncio.run(render())

    def work() -> None:
        assert np.array_equal(default_client().render(cloud(), CAMERA).color, expected)
        asyncio.run(render())

    in_child(work)
    asyncio.run(render())
    asyncio.run(client.close())


def closed(target: str) -> None:
    """A client that was closed stays closed in a child."""
    client = Client(target)
    client.info()
    client.close()

    def work() -> None:
        try:
            client.info()
        except LumigradError as error:
            assert "this client is closed" in str(error), error
        else:
            raise AssertionError("a closed client was used")

    in_child(work)


def updates(target: str) -> None:
    """A child moves the meshes of worlds, also if a thread of the parent noted an update at the fork."""
    shape, spheres = torus(), np.array([[0.0, 0.0, 1.5, 0.1]])
    with Client(target) as client:
        mesh = client.put(Mesh(shape.vertices, shape.faces))
        world = client.put(World([Obstacle(mesh)]))

        def moved(mesh: SceneHandle, size: float) -> tuple[SceneHandle, float]:
            mesh = client.update(mesh, vertices=size * shape.vertices)
            return mesh, float(client.query(world, spheres).distance[0])

        mesh, expected = moved(mesh, 1.5)

        def work() -> None:
            smaller, distance = moved(mesh, 1.25)
            assert distance != expected == moved(smaller, 1.5)[1]

        with client._workers.mesh_updates._lock:
            in_child(work)
        assert float(client.query(world, spheres).distance[0]) == expected


CASES = {case.__name__: case for case in (connection, default_and_coroutines, closed, updates)}

if __name__ == "__main__":
    CASES[sys.argv[1]](sys.argv[2])
