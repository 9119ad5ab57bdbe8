"""Stored worlds show a mesh as it was last updated, on whichever of several workers their queries arrive."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lumigrad.client import Client, Mesh, Obstacle, SceneHandle, World
from lumigrad.client.errors import SceneNotFound, Unavailable
from lumigrad.client.workers.mesh_updates import MeshUpdates
from lumigrad.client.workers.scene_store import SceneStore
from support.meshes.shapes import torus
from support.ports import reserved_port
from support.workers.fleet import end, fleet, targets
from support.workers.slow_render import wait_for
from support.workers.worker import WorkerProcess

SHAPE = torus()
VERTICES, FACES = SHAPE.vertices.astype(np.float32), SHAPE.faces.astype(np.int32)
SPHERES = np.array([[0, 0, 1.5, 0.1], [0, 3, 0.75, 0.1]], np.float32)
SIZES = (1.0, 1.5, 1.25)


def mesh(size: float = 1.0, shift: float = 0.0) -> Mesh:
    return Mesh(np.float32(size) * VERTICES + np.float32(shift), FACES)


def distances(client: Client, world: SceneHandle | World) -> bytes:
    return client.query(world, SPHERES).distance.tobytes()


class Pair:
    """Two workers, and a world with a mesh on one of them."""

    def __init__(self, stack: ExitStack, folder: Path | None, refers: bool) -> None:
        self._folder = folder
        self._ports = [stack.enter_context(reserved_port()) for _ in range(2)]
        self.workers = [self._start(number) for number in range(2)]
        stack.callback(lambda: [end(worker) for worker in self.workers])
        self.client = stack.enter_context(Client([worker.target for worker in self.workers], retry_s=60))
        self.expected = [distances(self.client, World([Obstacle(mesh(size))])) for size in SIZES]
        made = mesh()
        self.mesh = self.client.put(made)
        self.world = self.client.put(World([Obstacle(self.mesh if refers else made)]))
        self.home = next(n for n, worker in enumerate(self.workers) if worker.target == self.world.address)
        self.assert_shown(0)
        for worker in self.workers:
            wait_for(worker, "lumigrad_spool_waiting", 0)

    def assert_shown(self, number: int) -> None:
        assert self.expected.index(distances(self.client, self.world)) == number

    def update(self, number: int) -> None:
        self.mesh = self.client.update(self.mesh, vertices=np.float32(SIZES[number]) * VERTICES)

    def kill(self) -> None:
        end(self.workers[self.home])

    def bring_back(self) -> None:
        self.workers[self.home] = self._start(self.home)

    @property
    def is_home(self) -> bool:
        """Whether the world's own worker has answered queries since it is back."""
        return self.workers[self.home].metric("lumigrad_calls_total", method="DistanceService.Query") > 0

    def _start(self, number: int) -> WorkerProcess:
        spool = () if self._folder is None else ("--spool", str(self._folder / str(number)))
        options = ("--device", "cpu", "--lame-duck-seconds", "0", *spool)
        return WorkerProcess(*options, port=self._ports[number])


@pytest.fixture(params=["handle", "value"])
def refers(request: pytest.FixtureRequest) -> bool:
    """Whether the world refers to the stored mesh, or has the mesh itself."""
    return request.param == "handle"


@pytest.fixture(params=["memory", "spool"])
def pair(request: pytest.FixtureRequest, tmp_path: Path, refers: bool) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(stack, tmp_path if request.param == "spool" else None, refers)


def test_a_world_that_moves_takes_its_meshes_as_they_are(pair: Pair) -> None:
    pair.update(1)
    pair.assert_shown(1)
    pair.kill()
    pair.assert_shown(1)
    pair.update(2)
    pair.assert_shown(2)


def test_a_worker_that_returns_learns_what_has_moved(pair: Pair) -> None:
    pair.kill()
    pair.assert_shown(0)
    pair.update(1)
    pair.update(2)
    pair.bring_back()
    until = time.monotonic() + 150
    while not pair.is_home and time.monotonic() < until:
        pair.assert_shown(2)
    assert pair.is_home
    pair.assert_shown(2)
    pair.update(1)
    pair.assert_shown(1)


def test_a_mesh_may_be_on_another_worker_than_the_world_that_was_made_of_it() -> None:
    with fleet(2) as workers, Client(targets(workers)) as client:
        for shift in np.linspace(0, 1, 64):
            made = mesh(shift=shift)
            stored, world = client.put(made), client.put(World([Obstacle(made)]))
            if stored.address != world.address:
                break
        assert stored.address != world.address
        before = distances(client, world)
        client.update(stored, vertices=made.vertices * np.float32(1.5))
        expected = distances(client, World([Obstacle(Mesh(made.vertices * np.float32(1.5), FACES))]))
        assert distances(client, world) == expected != before
        end(next(worker for worker in workers if worker.target == world.address))
        assert distances(client, world) == expected


@pytest.mark.parametrize("spool", [False, True])
def test_what_another_client_stores_again_is_its_own(spool: bool, tmp_path: Path) -> None:
    with ExitStack() as stack:
        pair = Pair(stack, tmp_path if spool else None, refers=False)
        addresses = [worker.target for worker in pair.workers]
        other = stack.enter_context(Client(addresses, retry_s=60))
        reader = stack.enter_context(Client(addresses, retry_s=1))
        same = other.put(World([Obstacle(mesh())]))
        read = reader.get(pair.world.scene_id)

        def shown(client: Client, world: SceneHandle) -> int:
            return pair.expected.index(distances(client, world))

        pair.update(1)
        assert shown(other, same) == shown(reader, read) == 1
        pair.kill()
        # Only the client that has moved the mesh knows where it is.
        assert shown(other, same) == 0
        pair.assert_shown(1)
        pair.update(2)
        pair.assert_shown(2)
        assert shown(other, same) == 0
        # A handle without a copy never shows a mesh as it was.
        with pytest.raises((SceneNotFound, Unavailable)):
            distances(reader, read)


class Read:
    """The handle of a mesh's second version; while it is read, another thread ends the change to that version."""

    scene_id, version, scene = "moved", 2, None

    def __init__(self, happens: Callable[[], None]) -> None:
        self._happens = happens

    @property
    def address(self) -> str:
        self._happens()
        return "elsewhere"


def test_no_change_is_lost_while_another_thread_ends_the_one_before() -> None:
    store: Any = SceneStore(SimpleNamespace(target="here"), MeshUpdates())  # type: ignore[arg-type]
    first, second, third = (SceneHandle("moved", version, "", "mesh", 1, 1) for version in (1, 2, 3))

    def end() -> None:
        store._note_restored(second, SceneHandle("copied", 2, "", "mesh", 1, 1))
        store.changes.popleft()

    store.changes.append((first, second, None, ""))
    store.note_change(Read(end), third, None)
    assert [after for _, after, _, _ in store.changes] == [third]
