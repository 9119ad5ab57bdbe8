"""Replies that never arrive: the worker acts once, and the client that asks again gets the result."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from lumigrad.client import Client, Mesh, Obstacle, SceneNotFound, World
from lumigrad.v1 import worker_pb2
from support.calls.raw_calls import RawClient
from support.fault_proxy import FaultProxy
from support.meshes import shapes as mesh_shapes
from support.workers.client_load import CAMERA, client_fixture, cloud
from support.workers.fleet import end, fleet, homes
from support.workers.slow_render import wait_until
from support.workers.worker import WorkerProcess

BOX = mesh_shapes.box((1.0, 1.0, 1.0))
ASIDE = (3.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)


@pytest.fixture
def proxy(process: WorkerProcess) -> Iterator[FaultProxy]:
    with FaultProxy(process.target) as between:
        yield between


client = client_fixture("proxy", retry_s=60)


def wait_for_lines(process: WorkerProcess) -> None:
    """Wait until the log has the lines of all calls that have ended."""
    with process.channel() as channel:
        # Lines are written in batches, in which these need not be the last ones.
        for _ in range(2):
            request_id = f"seen-{uuid.uuid4().hex}"
            info = RawClient("", channel=channel).worker_stub.Info
            info(worker_pb2.InfoRequest(), metadata=(("x-request-id", request_id),), timeout=60)
            process.wait_for_log(f"request_id={request_id}")


def without_first_reply(
    process: WorkerProcess,
    proxy: FaultProxy,
    method: str,
    call: Callable[[], Any],
    lose: Callable[[], None] | None = None,
) -> Any:
    """The result of a call whose reply is lost with the connection, so that the client repeats it.

    `lose` begins to lose replies once the call is in progress; without it they are lost from the start.
    """
    returned: list[Any] = []
    text = f"method={method} code=OK"
    wait_for_lines(process)
    before = process.log.count(text)
    proxy.down.dropped = lose is None
    caller = threading.Thread(target=lambda: returned.append(call()))
    caller.start()
    if lose is not None:
        lose()
    process.wait_for_log(text, count=before + 1)
    proxy.end_all(heal=True)
    caller.join(150)
    assert len(returned) == 1
    return returned[0]


def test_an_update_whose_reply_is_lost_is_made_once(process: WorkerProcess, proxy: FaultProxy, client: Client) -> None:
    scene = cloud()
    first = client.put(scene)
    colors = np.random.default_rng(0).random(scene.colors.shape, np.float32)
    second = without_first_reply(process, proxy, "SceneService.Update", lambda: client.update(first, colors=colors))
    assert (second.scene_id, second.version) == (first.scene_id, 2)
    assert client.get(first.scene_id).version == 2
    expected = client.render(second.scene, CAMERA, max_depth=10).color
    assert np.array_equal(client.render(second, CAMERA, max_depth=10).color, expected)
    assert client.update(second, colors=scene.colors).version == 3


@pytest.mark.parametrize("kind", ["mesh", "world"])
def test_meshes_and_worlds_move_once(process: WorkerProcess, proxy: FaultProxy, client: Client, kind: str) -> None:
    box = Mesh(BOX.vertices, BOX.faces)
    first = client.put(box if kind == "mesh" else World([Obstacle(box, name="box")]))
    changes: dict[str, Any] = {"vertices": BOX.vertices * 2} if kind == "mesh" else {"poses": {"box": ASIDE}}
    second = without_first_reply(process, proxy, "SceneService.Update", lambda: client.update(first, **changes))
    assert (second.version, client.get(first.scene_id).version) == (2, 2)
    client.delete(second)


def test_a_scene_whose_reply_is_lost_is_stored_once(process: WorkerProcess, proxy: FaultProxy, client: Client) -> None:
    scene = cloud(40_000)
    wait_for_lines(process)
    looked_for, puts = (process.log.count(f"method=SceneService.{name}") for name in ("Get", "Put"))

    def put() -> Any:
        # The client first asks for the hash, and must get the answer; the slow upload then takes seconds.
        proxy.up.piece_bytes, proxy.up.bytes_per_second = 4096, 20e3
        return client.put(scene)

    def lose() -> None:
        process.wait_for_log("method=SceneService.Get", count=looked_for + 1)
        # The upload has begun, so the client has the answer.
        wait_until(lambda: process.metric("lumigrad_transit_bytes") > 0, "an upload")
        proxy.down.dropped = True
        proxy.up.heal()

    stored = without_first_reply(process, proxy, "SceneService.Put", put, lose)
    # The client asks for the hash again, and need not send the scene, which is stored by now.
    process.wait_for_log("method=SceneService.Get", count=looked_for + 2)
    process.wait_for_log("method=SceneService.Put", count=puts + 1)
    assert process.log.count("method=SceneService.Put") == puts + 1
    assert [one.content_hash for one in client.list()].count(stored.content_hash) == 1


def test_what_is_deleted_and_its_reply_lost_is_deleted(
    process: WorkerProcess, proxy: FaultProxy, client: Client
) -> None:
    stored = client.put(cloud())
    without_first_reply(process, proxy, "SceneService.Delete", lambda: client.delete(stored))
    assert stored not in client.list()
    with pytest.raises(SceneNotFound):
        client.delete(stored.scene_id)


def test_an_update_whose_worker_is_lost_with_the_reply_is_made_on_another() -> None:
    scene = cloud()
    colors = np.random.default_rng(0).random(scene.colors.shape, np.float32)
    with (
        fleet(2) as (home, other),
        FaultProxy(home.target) as proxy,
        FaultProxy(other.target) as other_proxy,
        Client([proxy.target, other_proxy.target], retry_s=60) as client,
    ):
        first = client.put(scene)
        homes_before = homes(client, [first])
        if homes_before == [other_proxy.target]:
            home, proxy = other, other_proxy

        def update() -> Any:
            proxy.down.dropped = True
            return client.update(first, colors=colors)

        def lose() -> None:
            home.wait_for_log("method=SceneService.Update code=OK")
            end(home)

        second = without_first_reply(home, proxy, "SceneService.Update", update, lose)
        assert homes(client, [second]) != homes_before
        expected = client.render(second.scene, CAMERA, max_depth=10).color
        assert np.array_equal(client.render(second, CAMERA, max_depth=10).color, expected)
        assert np.array_equal(second.scene.colors, colors)
        assert client.update(second, colors=scene.colors).version == second.version + 1
