"""Batches of renderings: the frames of single calls, an error for each item, and every transport of replies."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lumigrad.client import (
    Camera,
    Client,
    FisheyeLens,
    Frame,
    Gaussians,
    GaussianSettings,
    InvalidArgument,
    PinholeLens,
    SceneNotFound,
    Spheres,
    VersionMismatch,
)
from lumigrad.client.aio import AsyncClient, AsyncFrame
from lumigrad.client.rendering import batch
from lumigrad.client.transport.lanes import LaneMode
from lumigrad.client.values.handle import SceneHandle
from lumigrad.client.workers.routing import Route
from support.workers.client_load import wait_for_lane
from support.workers.fleet import fleet, targets
from support.workers.slow_render import wait_for, wait_until
from support.workers.worker import WorkerProcess

SENSOR: dict[str, Any] = {
    "outputs": ("color", "depth", "ids"),
    "image_format": {"color": "uint8", "depth": "float16"},
}


def gaussians(seed: int, count: int = 60) -> Gaussians:
    random = np.random.default_rng(seed)
    means, colors = random.normal(size=(count, 3)), random.random((count, 3))
    quats = random.normal(size=(count, 4))
    return Gaussians(means, quats, np.full((count, 3), 0.2), np.full(count, 0.6), colors=colors)


def spheres(seed: int) -> Spheres:
    random = np.random.default_rng(seed)
    return Spheres(random.normal(size=(50, 3)), random.random((50, 3)), np.full(50, 0.2))


def orbit(turn: float, width: int = 32, height: int = 24) -> Camera:
    return Camera.orbit((0, 0, 0), 5.0, turn, 20.0, width=width, height=height)


def sensor(lens: Any, width: int, height: int) -> Camera:
    return Camera.sensor(lens, np.eye(3), np.array([0.0, 0, 5]), width, height)


def mixture(client: Client) -> list[Any]:
    first, second, balls = client.put(gaussians(1)), client.put(gaussians(2)), client.put(spheres(3))
    pinhole = PinholeLens(fx=40, fy=40, cx=20, cy=15, radial=(-0.1, 0.02))
    fisheye = FisheyeLens(fx=20, fy=20, cx=20, cy=15)
    return [
        *[(scene, orbit(30.0 * turn), SENSOR) for turn in range(4) for scene in (first, second)],
        (first, sensor(pinhole, 40, 30), {"near": 0.5}),
        (second, sensor(fisheye, 40, 30)),
        (balls, [orbit(10), orbit(50)], {"outputs": ("color", "sphere_ids"), "gamma": 0.05}),
        (gaussians(4), orbit(0, 16, 16), {"outputs": ("color", "alpha"), "image_format": {"color": "png"}}),
        (first, orbit(0, 200, 150), {"image_format": "float32"}),
    ]


def assert_same(found: object, wanted: Frame) -> None:
    assert isinstance(found, Frame), found
    assert dict(found.encoded) == dict(wanted.encoded)
    assert set(found) == set(wanted)
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array, err_msg=name)


@pytest.mark.parametrize("lane", ["stream", "shared"])
def test_frames_are_those_of_single_calls(worker_process: WorkerProcess, lane: LaneMode) -> None:
    with Client(worker_process.target, lane=lane) as client:
        wait_for_lane(client, lane)
        items = mixture(client)
        before = worker_process.metric("lumigrad_calls_total", method="RenderService.RenderBatch", code="OK")
        results = client.render_batch(items)
        count = worker_process.metric("lumigrad_calls_total", method="RenderService.RenderBatch", code="OK")
        assert count == before + 1
        for (scene, camera, *own), found in zip(items, results, strict=True):
            assert_same(found, client.render(scene, camera, **(own[0] if own else {})))


@pytest.mark.parametrize("lane", ["stream", "shared"])
def test_sensors_segment_two_scenes_in_one_call(worker_process: WorkerProcess, lane: LaneMode) -> None:
    """Gaussians in red, green and blue: where a channel is above one half, the id is that of its Gaussian."""
    orders = ((0, 1, 2), (2, 0, 1))
    means, quats = np.array([[-0.8, 0, 0], [0, 0.5, 0.3], [0.8, -0.2, -0.4]]), np.eye(4)[:3]
    scenes = [
        Gaussians(means, quats, np.full((3, 3), 0.35), np.full(3, 0.95), colors=np.eye(3)[list(order)])
        for order in orders
    ]
    with Client(worker_process.target, lane=lane) as client:
        wait_for_lane(client, lane)
        handles = [client.put(scene) for scene in scenes]
        results = client.render_batch(
            [(handle, orbit(60.0 * turn)) for turn in range(3) for handle in handles], **SENSOR
        )
    seen = np.zeros((2, 3))
    for number, frame in enumerate(results):
        assert isinstance(frame, Frame)
        assert [frame[name].dtype for name in SENSOR["outputs"]] == [np.uint8, np.float32, np.int32]
        np.testing.assert_array_equal(frame.ids >= 0, frame.color.any(-1))
        for channel in range(3):
            mostly = frame.color[..., channel] > 128
            np.testing.assert_array_equal(frame.ids[mostly], orders[number % 2].index(channel))
            seen[number % 2, channel] += mostly.sum()
    assert (seen > 10).all()


@pytest.mark.parametrize("lane", ["stream", "shared"])
def test_small_pictures_share_their_way(worker_process: WorkerProcess, lane: LaneMode) -> None:
    """There are more outputs than a lane may have regions, and each is too small for a region of its own."""
    with Client(worker_process.target, lane=lane) as client:
        wait_for_lane(client, lane)
        scene = client.put(gaussians(1))
        items = [(scene, orbit(3.0 * turn, 40 + turn % 100, 40)) for turn in range(120)]
        results = client.render_batch(items, **SENSOR)
        fallbacks = worker_process.metric("lumigrad_lane_fallbacks_total", reason="full")
        held = [client.render_batch(items, **SENSOR) for _ in range(3)]
        assert worker_process.metric("lumigrad_lane_fallbacks_total", reason="full") == fallbacks
        for (scene, camera), found in list(zip(items, results, strict=True))[::17]:
            assert_same(found, client.render(scene, camera, **SENSOR))
        for other in held:
            for found, wanted in zip(other, results, strict=True):
                assert isinstance(wanted, Frame)
                assert_same(found, wanted)


def test_gradients_are_those_of_single_calls(client: Client) -> None:
    scene = client.put(gaussians(1))
    single = client.render(scene, orbit(40), retain=True)
    _, frame = client.render_batch([(scene, orbit(10)), (scene, orbit(40))])
    assert isinstance(frame, Frame)
    upstream = np.random.default_rng(0).normal(size=single.color.shape)
    wanted, found = (one.backward(upstream, wanted=("means", "cameras")) for one in (single, frame))
    for name in wanted:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-5, atol=1e-5, err_msg=name)


def test_an_items_settings_replace_the_shared_fields_and_its_fields_refine_them(client: Client) -> None:
    scene, camera = client.put(gaussians(1)), orbit(0)
    own = GaussianSettings(scale_modifier=0.5)
    frames = client.render_batch(
        [(scene, camera, {"settings": own}), (scene, camera, {"far": 9.0}), (scene, camera, {"settings": None})],
        scale_modifier=2.0,
    )
    alone = [client.render(scene, camera, settings=own)]
    alone += [client.render(scene, camera, scale_modifier=2.0, **fields) for fields in ({"far": 9.0}, {})]
    for frame, expected in zip(frames, alone, strict=True):
        np.testing.assert_array_equal(frame.color, expected.color)


def test_what_is_wrong_with_an_item_is_its_result(worker_process: WorkerProcess, client: Client) -> None:
    scene, gone = client.put(gaussians(1)), client.put(gaussians(8))
    client.delete(gone)
    stranger = replace(scene, scene_id="none", scene=None)
    old = client.put(gaussians(9))
    client.update(old, opacities=np.full(60, 0.5))
    items = [
        (scene, orbit(0)),
        (stranger, orbit(0)),
        (scene, orbit(0), {"alpha_max": 2.0}),
        (scene, orbit(0), {"gamma": 0.1}),
        (scene, orbit(0), {"outputs": ("sphere_ids",)}),
        (gone, orbit(0)),
        (old, orbit(0)),
        (scene, orbit(0), {"image_format": "png", "outputs": ("depth",)}),
        (scene, orbit(0), {"nea": 1.0}),
        (scene, orbit(0), {"retain": True}),
        (scene, orbit(0), {7: True}),
    ]
    results = client.render_batch(items)
    kinds = [Frame, SceneNotFound, *[InvalidArgument] * 3, Frame, VersionMismatch, *[InvalidArgument] * 4]
    for index, (found, kind) in enumerate(zip(results, kinds, strict=True)):
        assert isinstance(found, kind), found
        if not isinstance(found, Frame):
            assert str(found).startswith(f"items[{index}]: ")
    assert [violation.field for violation in results[2].violations] == ["alpha_max"]
    assert [violation.field for violation in results[3].violations] == ["gamma"]
    assert [result.violations[0].field for result in results[8:]] == ["nea", "retain", "7"]
    assert_same(results[5], client.render(gaussians(8), orbit(0)))


def test_items_that_are_none_are_refused(client: Client) -> None:
    scene = client.put(gaussians(1))
    for items, field in (
        (scene, "items"),
        ("items", "items"),
        ([scene], "items[0]"),
        ([(scene, orbit(0)), (scene, orbit(0), "near")], "items[1]"),
        ([(scene, orbit(0))] * 257, "items"),
    ):
        with pytest.raises(InvalidArgument) as caught:
            client.render_batch(items)
        assert caught.value.violations[0].field == field
    with pytest.raises(InvalidArgument, match=r"^spread: expected arguments of render"):
        client.render_batch([(scene, orbit(0))], spread=True)
    assert client.render_batch([]) == ()


def test_a_lone_bad_item_costs_no_call(client: Client) -> None:
    (error,) = client.render_batch([(gaussians(1), "camera")])
    assert isinstance(error, InvalidArgument)
    assert str(error).startswith("items[0]: camera: ")


@pytest.fixture(scope="module")
def workers() -> Iterator[list[WorkerProcess]]:
    with fleet(2) as processes:
        yield processes


def test_each_worker_renders_the_items_of_its_scenes(workers: list[WorkerProcess]) -> None:
    with Client(targets(workers)) as client, Client(workers[0].target) as lone:
        scenes = [gaussians(seed) for seed in range(8)]
        handles = [client.put(scene) for scene in scenes]
        items = [(handle, orbit(20.0 * turn)) for turn in range(3) for handle in handles]
        results = client.render_batch([*items, (handles[0], orbit(0), {"near": -1.0})], **SENSOR)
        for process in workers:
            # A call is counted a moment after its reply.
            wait_for(process, "lumigrad_calls_total", 1, method="RenderService.RenderBatch", code="OK")
            assert process.metric("lumigrad_batch_items_total", code="NOT_FOUND") == 0
        for number, found in enumerate(results[:-1]):
            assert_same(found, lone.render(scenes[number % 8], items[number][1], **SENSOR))
        assert str(results[-1]).startswith(f"items[{len(items)}]: ")


def test_another_worker_takes_the_items_of_one_that_is_lost() -> None:
    with fleet(2) as processes, Client(targets(processes)) as client:
        handles = [client.put(gaussians(seed)) for seed in range(6)]
        items = [(handle, orbit(0)) for handle in handles]
        before = client.render_batch(items)
        processes[0].stop()
        for found, wanted in zip(client.render_batch(items), before, strict=True):
            assert isinstance(wanted, Frame)
            assert_same(found, wanted)


def test_coroutines_get_frames_whose_gradients_are_awaited(worker_process: WorkerProcess, client: Client) -> None:
    async def ask() -> tuple[Any, Any]:
        async with AsyncClient(worker_process.target) as several:
            scene = await several.put(gaussians(1))
            frame, error = await several.render_batch([(scene, orbit(0)), (scene, orbit(0), {"gamma": 1.0})])
            assert isinstance(frame, AsyncFrame)
            return (await frame.backward(np.ones_like(frame.color))), error

    gradients, error = asyncio.run(ask())
    assert np.abs(gradients.means).max() > 0
    assert isinstance(error, InvalidArgument)


def test_a_cancelled_task_cancels_the_batch(worker_process: WorkerProcess) -> None:
    line = "method=RenderService.RenderBatch code=CANCELLED"
    before = worker_process.log.count(line)

    async def ask() -> None:
        async with AsyncClient(worker_process.target) as client:
            scene = await client.put(gaussians(5, count=3000))
            items = [(scene, orbit(0, 256, 256), {"near": 0.01 + 1e-4 * number}) for number in range(200)]
            task = asyncio.create_task(client.render_batch(items))
            while worker_process.metric("lumigrad_calls_in_progress") < 1 and not task.done():
                await asyncio.sleep(0.01)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    # A batch may be over before it is cancelled on a busy machine.
    for _ in range(40):
        asyncio.run(ask())
        wait_for(worker_process, "lumigrad_calls_in_progress", 0)
        with suppress(TimeoutError):
            wait_until(lambda: worker_process.log.count(line) > before, line, seconds=3.0)
            return
    pytest.fail("no batch was cancelled")


def test_items_go_to_the_workers_of_their_scenes_named_by_id_or_address(monkeypatch: pytest.MonkeyPatch) -> None:
    named = ("id", ""), ("", "file:a"), ("", "file:b")
    handles = [SceneHandle(key, 0, "", "gaussians", 1, 0, affinity=key or name, name=name) for key, name in named]
    workers: Any = SimpleNamespace(members=list, route=lambda stored: Route("" if stored is None else stored.affinity))
    monkeypatch.setattr(batch, "in_order", lambda route, _: [SimpleNamespace(target=f"worker of {route.key!r}")])
    requests: Any = {index: SimpleNamespace(stored=stored) for index, stored in enumerate([None, *handles, None])}
    shares = {route.address: list(items) for route, items in batch._shares(workers, requests)}
    assert shares == {
        "worker of ''": [0, 4],
        "worker of 'id'": [1],
        "worker of 'file:a'": [2],
        "worker of 'file:b'": [3],
    }
