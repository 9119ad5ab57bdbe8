"""One client of several workers, all of which stay alive."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator

import numpy as np
import pytest

from lumigrad.client import Client, LumigradError, ResourceExhausted, SceneNotFound, Unavailable
from lumigrad.client.aio import AsyncClient
from lumigrad.client.transport.connection import Connection
from lumigrad.client.workers.routing import ranked
from support.workers.client_load import wait_for_lane
from support.workers.fleet import CAMERA, SETTINGS, cloud, fleet, homes, puts, targets
from support.workers.forks import lumigrad
from support.workers.worker import WorkerProcess


@pytest.fixture(scope="module")
def workers() -> Iterator[list[WorkerProcess]]:
    with fleet(3) as processes:
        yield processes


@pytest.fixture
def client(workers: list[WorkerProcess]) -> Iterator[Client]:
    with Client(targets(workers)) as several:
        yield several


def test_scenes_stay_on_the_worker_that_their_content_chooses(client: Client, workers: list[WorkerProcess]) -> None:
    handles = [client.put(cloud(seed)) for seed in range(30)]
    stored = [puts(worker) for worker in workers]
    expected = [ranked(handle.content_hash, targets(workers))[0] for handle in handles]
    assert homes(client, handles) == expected == homes(client, handles)
    assert set(expected) == set(targets(workers))
    with Client(",".join(targets(workers)[::-1])) as other:
        assert homes(other, [other.put(cloud(seed)) for seed in range(30)]) == expected
    assert [puts(worker) for worker in workers] == stored
    assert {info.target for info in client.infos()} == set(targets(workers))
    assert {handle.scene_id for handle in handles} <= {handle.scene_id for handle in client.list()}


def test_versions_copies_and_names_of_a_scene(client: Client) -> None:
    handle = client.put(cloud(100))
    home = homes(client, [handle])
    updated = client.update(handle, radii=cloud(100).radii * 2)
    assert updated.version == 2 and homes(client, [updated]) == home
    # A handle without the client's copy finds its scene on any worker.
    named = client.get(updated.scene_id)
    assert named.scene is None and homes(client, [named]) == home
    copy = client.get(updated.scene_id, with_tensors=True)
    np.testing.assert_array_equal(copy.scene.radii, cloud(100).radii * 2)
    client.delete(updated)
    with pytest.raises(SceneNotFound):
        client.get(updated.scene_id)
    with pytest.raises(SceneNotFound):
        client.delete(updated)


def test_a_new_worker_takes_its_share_and_scenes_follow_once(workers: list[WorkerProcess]) -> None:
    known = targets(workers)[:2]
    with Client(lambda: known) as client:
        handles = [client.put(cloud(200 + seed)) for seed in range(24)]
        before = homes(client, handles)
        stored = puts(workers[2])
        known = targets(workers)
        until = time.monotonic() + 60
        while len(client.infos()) < 3:
            assert time.monotonic() < until, "the new worker is not found"
            time.sleep(0.05)
        after = homes(client, handles)
        moved = [new for old, new in zip(before, after, strict=True) if old != new]
        assert set(moved) == {workers[2].target}
        # A third is expected.
        assert len(moved) <= 24 * 2 / 3
        assert homes(client, handles) == after
        assert puts(workers[2]) - stored == len(moved)


def test_gradients_come_from_the_worker_that_rendered(client: Client, workers: list[WorkerProcess]) -> None:
    lone = Client(workers[0].target)
    for seed in range(300, 304):
        frame = client.render(client.put(cloud(seed)), CAMERA, retain=True, **SETTINGS)
        upstream = np.ones_like(frame.color)
        expected = lone.render(cloud(seed), CAMERA, **SETTINGS).backward(upstream)
        contexts = {info.target: info.contexts for info in client.infos()}
        assert contexts[frame._context._kept.worker.target] >= 1
        for name, gradient in frame.backward(upstream, release=True).items():
            np.testing.assert_array_equal(gradient, expected[name])
    lone.close()


def test_what_travels_with_the_call_goes_round(client: Client, workers: list[WorkerProcess]) -> None:
    asked = set()
    for _ in range(6):
        frame = client.render(cloud(400), CAMERA, retain=True, **SETTINGS)
        asked.add(frame._context._kept.worker.target)
        frame.release()
    assert asked == set(targets(workers))


def test_coroutines_have_several_workers_too(workers: list[WorkerProcess]) -> None:
    async def main() -> None:
        async with AsyncClient(targets(workers)) as client:
            handles = await asyncio.gather(*(client.put(cloud(500 + seed)) for seed in range(6)))
            frames = await asyncio.gather(*(client.render(handle, CAMERA, **SETTINGS) for handle in handles))
            for seed, frame in enumerate(frames):
                expected = await client.render(cloud(500 + seed), CAMERA, **SETTINGS)
                np.testing.assert_array_equal(frame.color, expected.color)
            assert len(await client.infos()) == 3

    asyncio.run(main())


def test_a_name_that_is_looked_up(workers: list[WorkerProcess]) -> None:
    with Client(f"dns:///localhost:{workers[0].port}") as client:
        assert client.info().target == f"127.0.0.1:{workers[0].port}"
        wait_for_lane(client)


def test_a_training_stays_on_one_worker(client: Client) -> None:
    photograph = np.full((CAMERA.height, CAMERA.width, 3), 128, np.uint8)
    trainer = client.trainer(client.put(cloud(600)), [CAMERA], [photograph], **SETTINGS)
    assert [step.number for step in trainer.steps(3)] == [0, 1, 2]
    published = trainer.publish()
    # This client has no copy of the trained scene.
    assert client.render(published, CAMERA, **SETTINGS).color.shape == (CAMERA.height, CAMERA.width, 3)
    trainer.close(finish=False)
    with client.resume_trainer(trainer.training_id, trainer.lease) as again:
        assert again.step().number == 3
    with pytest.raises(LumigradError):
        client.resume_trainer("nobody", "nothing")


def test_when_nobody_answers_the_error_names_all_of_them() -> None:
    with socket.socket() as one, socket.socket() as other:
        ports = []
        for taken in (one, other):
            taken.bind(("127.0.0.1", 0))
            ports.append(taken.getsockname()[1])
        with Client([f"127.0.0.1:{port}" for port in ports], retry_s=0.2) as client:
            with pytest.raises(Unavailable, match=r"^none of 2 workers answered: ") as caught:
                client.render(cloud(0), CAMERA, **SETTINGS)
            for port in ports:
                assert f"no worker at 127.0.0.1:{port}" in str(caught.value)


def test_replicas_share_the_calls_of_a_hot_scene(client: Client, workers: list[WorkerProcess]) -> None:
    handle = client.put(cloud(700), replicas=2)
    first, second = ranked(handle.content_hash, targets(workers))[:2]
    assert set(homes(client, [handle] * 4)) <= {first, second}
    busy = next(worker for worker in client._workers.members() if worker.target == first)
    busy.under_way += 1
    assert homes(client, [handle]) == [second]
    busy.under_way -= 1
    updated = client.update(handle, radii=cloud(700).radii * 2)
    assert updated.replicas == 2
    expected = client.render(updated.scene, CAMERA, **SETTINGS).color
    for _ in range(4):
        np.testing.assert_array_equal(client.render(updated, CAMERA, **SETTINGS).color, expected)


def test_a_full_queue_spills_over_to_the_next_workers_and_no_further(
    client: Client, workers: list[WorkerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = client.put(cloud(800))
    order = ranked(handle.content_hash, targets(workers))
    full: list[str] = []
    asked: list[str] = []
    # Longer than any call waits.
    retry_after_s = 1e3

    def exchange(self, *arguments):
        asked.append(self.target)
        if self.target in full:
            if len(asked) == len(order):
                full.clear()
            raise ResourceExhausted(f"the worker at {self.target} is busy", retry_after_s=retry_after_s)
        return original(self, *arguments)

    original = Connection.exchange
    expected = client.render(handle, CAMERA, **SETTINGS).color
    monkeypatch.setattr(Connection, "exchange", exchange)
    for count in (1, 2):
        full[:], asked[:] = order[:count], []
        np.testing.assert_array_equal(client.render(handle, CAMERA, **SETTINGS).color, expected)
        assert list(dict.fromkeys(asked)) == order[: count + 1]
    full[:], asked[:] = order, []
    with pytest.raises(ResourceExhausted, match=order[0]):
        client.render(handle, CAMERA, **SETTINGS)
    assert asked == order
    # A scene of which the client has no copy cannot move to another worker.
    full[:], asked[:] = order[:1], []
    with pytest.raises(ResourceExhausted):
        client.render(client.get(handle.scene_id), CAMERA, **SETTINGS)
    assert asked == order[:1]
    # While time is left, all workers are asked again, the scene's own first.
    full[:], asked[:] = order, []
    retry_after_s = 0.1
    np.testing.assert_array_equal(client.render(handle, CAMERA, **SETTINGS).color, expected)
    assert asked[: len(order) + 1] == [*order, order[0]]


def test_info_shows_each_worker(workers: list[WorkerProcess], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUMIGRAD_TARGET", ",".join(targets(workers)))
    monkeypatch.setenv("COLUMNS", "120")
    done = lumigrad("info", "--json")
    assert done.returncode == 0, done.stderr
    assert {entry["target"] for entry in json.loads(done.stdout)} == set(targets(workers))
    text = lumigrad("info").stdout
    assert text.count("CPU kernels") == 3
