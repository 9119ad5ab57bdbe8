"""The awaitable client: results, errors, order and limits."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Iterator

import numpy as np
import pytest

from lumigrad.client import (
    Camera,
    Client,
    Cuboid,
    InvalidArgument,
    LumigradError,
    Obstacle,
    SceneHandle,
    SceneNotFound,
    World,
)
from lumigrad.client.aio import AsyncClient, AsyncDistances, AsyncFrame
from lumigrad.client.rendering.frame import Frame
from support.workers.client_load import CAMERA, cloud
from support.workers.worker import WorkerProcess

CAMERAS = [Camera.orbit((0, 0, 0), 5.0, angle, 10.0, width=64, height=48) for angle in range(0, 360, 15)]


def public(kind: type) -> dict[str, object]:
    return {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}


def test_every_verb_can_be_awaited_with_the_same_arguments():
    awaited, blocking = public(AsyncClient), public(Client)
    assert set(blocking) <= set(awaited)
    for name, verb in blocking.items():
        if inspect.isfunction(verb) and name != "close":
            assert inspect.iscoroutinefunction(awaited[name]) or name in ("trainer", "resume_trainer", "stream"), name
            assert str(inspect.signature(awaited[name])) == str(inspect.signature(verb)), name
            assert awaited[name].__doc__ == verb.__doc__, name
    options = [set(inspect.signature(kind).parameters) for kind in (AsyncClient, Client)]
    assert options[0] - options[1] == {"calls"} and options[1] < options[0]


def test_scenes_pictures_and_gradients_are_those_of_the_client(worker_process: WorkerProcess, client: Client):
    scene = cloud()
    expected = client.render(scene, CAMERA, outputs=("color", "depth"), retain=True)
    gradients = expected.backward(color=expected.color)

    async def main() -> None:
        async with AsyncClient(worker_process.target) as own:
            handle = await own.put(scene)
            frame = await own.render(handle, CAMERA, outputs=("color", "depth"), retain=True)
            assert isinstance(frame, AsyncFrame) and list(frame) == list(expected)
            assert np.array_equal(frame.color, expected.color) and np.array_equal(frame["depth"], expected.depth)
            found = await frame.backward(color=frame.color, release=True)
            assert np.array_equal(found.positions, gradients.positions)
            moved = await own.update(handle, positions=scene.positions + 0.1)
            assert moved.version == handle.version + 1
            again = await own.get(moved.scene_id, with_tensors=True)
            assert np.array_equal(again.scene.positions, scene.positions + np.float32(0.1))
            assert moved.scene_id in [stored.scene_id for stored in await own.list()]
            await own.delete(moved)
            assert moved.scene_id not in [stored.scene_id for stored in await own.list()]
            assert (await own.info()).device == "cpu" and await own.lane() in ("shared", "stream")

    asyncio.run(main())


def test_a_state_is_released_while_all_calls_are_busy_and_after_the_client_was_closed(worker_process: WorkerProcess):
    """Leaving a frame's block waits for no other call, and does not hide the error that was raised inside."""

    async def main() -> None:
        async with AsyncClient(worker_process.target, calls=1) as own:
            frames = [await own.render(cloud(), CAMERA, retain=True) for _ in range(4)]
            over = threading.Event()
            busy = own._calls._threads.submit(over.wait, 200)
            try:
                async with frames[0]:
                    pass
                await frames[1].release()
                assert not busy.done()
            finally:
                over.set()
            with pytest.raises(ZeroDivisionError):
                async with frames[2]:
                    await own.close()
                    raise ZeroDivisionError
            await frames[3].release()
        assert not [frame for frame in frames if frame._blocking._context._kept is not None]

    asyncio.run(asyncio.wait_for(main(), 120))


def test_distances_and_their_gradients_are_awaited_too(worker_process: WorkerProcess, client: Client):
    world = World([Obstacle(Cuboid((1, 1, 1)), name="box")])
    spheres = np.random.default_rng(0).uniform(-1, 1, (2, 5, 3, 4)).astype(np.float32)
    expected = client.query(world, spheres, outputs=("distance", "cost"))

    async def main() -> None:
        async with AsyncClient(worker_process.target) as own:
            async with await own.query(world, spheres, outputs=("distance", "cost"), retain=True) as found:
                assert np.array_equal(found.distance, expected.distance)
                gradients = await found.backward(cost=np.ones_like(found.cost))
                assert gradients.spheres.shape == spheres.shape
                assert found._blocking._context._kept is not None
            assert found._blocking._context._kept is None
            grid = await own.field(world, size=(1.0, 1.0, 1.0), voxel_size=0.25)
            assert grid.distances.shape == (4, 4, 4)

    asyncio.run(main())


def test_files_of_frames_are_decoded(worker_process: WorkerProcess):
    pytest.importorskip("PIL")

    async def main() -> None:
        async with AsyncClient(worker_process.target) as own:
            frame = await own.render(cloud(), CAMERA, image_format="png")
            assert isinstance(frame.encoded["color"], bytes)
            assert frame.decoded("color").shape == (48, 64, 3)
            with pytest.raises(AttributeError, match="came in files"):
                _ = frame.color

    asyncio.run(main())


def test_errors_are_those_of_the_client(worker_process: WorkerProcess):
    async def main() -> None:
        async with AsyncClient(worker_process.target) as own:
            with pytest.raises(InvalidArgument, match="outputs"):
                await own.render(cloud(), CAMERA, outputs=("colour",))
            with pytest.raises(InvalidArgument, match="scene"):
                await own.render("scene.ply", CAMERA)
            with pytest.raises(SceneNotFound):
                await own.get("0123456789abcdef")
        with pytest.raises(LumigradError, match="closed; make a new one"):
            await own.info()

    asyncio.run(main())
    with pytest.raises(InvalidArgument, match="calls"):
        AsyncClient(worker_process.target, calls=0)


def test_many_renders_at_once_are_all_right(worker_process: WorkerProcess, client: Client):
    handle = client.put(cloud())
    expected = [client.render(handle, camera).color for camera in CAMERAS]

    async def main() -> None:
        async with AsyncClient(worker_process.target, calls=8) as own:
            numbers = [number % len(CAMERAS) for number in range(100)]
            frames = await asyncio.gather(*(own.render(handle, CAMERAS[number]) for number in numbers))
            for number, frame in zip(numbers, frames, strict=True):
                assert np.array_equal(frame.color, expected[number])

    asyncio.run(main())


def test_event_loops_may_share_a_client(worker_process: WorkerProcess):
    own = AsyncClient(worker_process.target)
    pictures = [asyncio.run(own.render(cloud(), CAMERA)).color for _ in range(2)]
    assert np.array_equal(*pictures)
    asyncio.run(own.close())
    asyncio.run(own.close())


def test_streams_of_frames_come_in_order(worker_process: WorkerProcess, client: Client):
    handle = client.put(cloud())
    expected = [client.render(handle, camera).color for camera in CAMERAS]
    taken: list[int] = []

    def some() -> Iterator[Camera]:
        for number, camera in enumerate(CAMERAS):
            taken.append(number)
            yield camera

    async def each() -> AsyncIterator[Camera]:
        for camera in some():
            await asyncio.sleep(0)
            yield camera

    async def main() -> None:
        async with AsyncClient(worker_process.target) as own:
            for cameras in (some(), each()):
                taken.clear()
                count = 0
                async with own.stream(handle, in_flight=4) as stream:
                    async for frame in stream.frames(cameras):
                        assert np.array_equal(frame.color, expected[count])
                        count += 1
                        # The stream takes no more cameras than may be in flight.
                        assert len(taken) <= count + 3
                    assert [frame async for frame in stream.frames([])] == []
                assert count == len(CAMERAS)

    asyncio.run(main())


def test_frames_come_as_soon_as_they_are_ready(worker_process: WorkerProcess) -> None:
    """A camera may depend on the previous frame: no frame is held back for later cameras, whatever the limit."""

    async def main(in_flight: int, handle: SceneHandle) -> None:
        seen: list[AsyncFrame] = []
        has_come = asyncio.Event()

        async def cameras() -> AsyncIterator[Camera]:
            for number in range(3):
                while len(seen) < number:
                    has_come.clear()
                    await has_come.wait()
                yield CAMERA

        async with AsyncClient(worker_process.target) as own, own.stream(handle, in_flight=in_flight) as stream:
            async for frame in stream.frames(cameras()):
                seen.append(frame)
                has_come.set()
        assert len(seen) == 3

    with Client(worker_process.target) as client:
        handle = client.put(cloud())
        for in_flight in (1, 4):
            asyncio.run(asyncio.wait_for(main(in_flight, handle), 120))


def test_an_error_of_the_cameras_comes_after_the_frames_before_it(worker_process: WorkerProcess) -> None:
    async def cameras() -> AsyncIterator[Camera]:
        yield CAMERA
        yield CAMERA
        raise OSError("no more cameras")

    async def main() -> None:
        async with AsyncClient(worker_process.target) as own:
            count = 0
            with pytest.raises(OSError, match="no more cameras"):
                async with own.stream(cloud()) as stream:
                    async for _ in stream.frames(cameras()):
                        count += 1
            assert count == 2
            assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_an_error_in_a_stream_comes_in_its_turn(worker_process: WorkerProcess):
    async def main() -> None:
        async with AsyncClient(worker_process.target) as own:
            async with own.stream(cloud(), in_flight=4) as stream:
                frames = stream.frames([CAMERA, CAMERA, "camera", CAMERA])
                assert (await anext(frames)).color.shape == (48, 64, 3)
                assert (await anext(frames)).color.shape == (48, 64, 3)
                with pytest.raises(InvalidArgument, match="camera"):
                    await anext(frames)
                await stream.send(CAMERA)
                assert stream.pending == 1
                assert (await stream.receive()).color.shape == (48, 64, 3)
            with pytest.raises(InvalidArgument, match="in_flight"):
                async with own.stream(cloud(), in_flight=0):
                    pass
            with pytest.raises(LumigradError, match="async with"):
                await own.stream(cloud()).send(CAMERA)

    asyncio.run(main())


def test_a_stream_may_be_left(worker_process: WorkerProcess):
    def endless() -> Iterator[Camera]:
        while True:
            yield CAMERA

    async def main() -> None:
        async with AsyncClient(worker_process.target) as own:
            async with own.stream(cloud()) as stream:
                async for _ in stream.frames(endless()):
                    break
            # Tasks that were cancelled when the stream was left end on their own.
            ending = asyncio.all_tasks() - {asyncio.current_task()}
            await asyncio.wait_for(asyncio.gather(*ending, return_exceptions=True), 120)
            assert len(asyncio.all_tasks()) == 1
            assert (await own.info()).device == "cpu"

    asyncio.run(main())


def test_frames_of_both_kinds_have_the_same_verbs():
    assert set(public(Frame)) <= set(public(AsyncFrame))


def test_frames_and_distances_of_both_kinds_have_the_same_attributes(worker_process: WorkerProcess, client: Client):
    world, spheres = World([Obstacle(Cuboid((1, 1, 1)))]), np.zeros((1, 1, 1, 4), np.float32)
    blocking = client.render(cloud(), CAMERA, image_format="png"), client.query(world, spheres)

    async def main() -> tuple[AsyncFrame, AsyncDistances]:
        async with AsyncClient(worker_process.target) as own:
            return await own.render(cloud(), CAMERA, image_format="png"), await own.query(world, spheres)

    for expected, found in zip(blocking, asyncio.run(main()), strict=True):
        names = {name for name in vars(expected) if not name.startswith("_")}
        assert {"timings"} < names <= set(vars(found)), type(expected)
        assert all(type(getattr(found, name)) is type(getattr(expected, name)) for name in names)
    assert list(blocking[0].files) == ["color"]
