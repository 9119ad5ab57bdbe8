"""Values and results that are pickled and copied: the same afterwards, without what belongs to one process or owner."""

from __future__ import annotations

import asyncio
import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lumigrad import client as api
from lumigrad.client.aio import AsyncClient
from lumigrad.client.base.arrays import NamedArrays, Tensors
from support.meshes.shapes import box
from support.training.scenes import gaussian_lesson
from support.workers.slow_render import wait_until
from support.workers.worker import WorkerProcess, worker

CAMERA = api.Camera.look_at((0, 0, 4), (0, 0, 0), width=32, height=24)
SCENE = gaussian_lesson(40).scene
WAYS: dict[str, Callable[[Any], Any]] = {
    "pickled": lambda value: pickle.loads(pickle.dumps(value)),
    "copied": copy.copy,
    "copied deeply": copy.deepcopy,
}
WORLD = api.World([api.Obstacle(api.Cuboid((1, 1, 1)))])


@pytest.fixture(params=WAYS, ids=lambda name: name.replace(" ", "-"))
def way(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    return WAYS[request.param]


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, np.ndarray):
        np.testing.assert_array_equal(found, expected)
    elif isinstance(expected, NamedArrays | Tensors):
        arrays = (lambda it: dict(it)) if isinstance(expected, NamedArrays) else (lambda it: it.tensors)
        assert arrays(found).keys() == arrays(expected).keys()
        for name, array in arrays(expected).items():
            np.testing.assert_array_equal(arrays(found)[name], array)
    assert repr(found) == repr(expected)


def values() -> list[Any]:
    shape = box((1.0, 1.0, 1.0))
    mesh = api.Mesh(shape.vertices, shape.faces)
    lens = api.PinholeLens(fx=100.0, fy=100.0, cx=16.0, cy=12.0)
    shapes = [mesh, api.VoxelGrid(np.ones((3, 3, 3)), 0.1), api.Cuboid((1, 2, 3))]
    return [
        *(SCENE, api.Spheres(np.zeros((2, 3)), np.ones((2, 3)), np.ones(2))),
        *(mesh, api.World(map(api.Obstacle, shapes))),
        api.TargetImage(np.zeros((4, 5, 3), np.uint8), mask=np.ones((4, 5)), depth=np.ones((4, 5))),
        *(CAMERA, api.Camera.sensor(lens, np.eye(3), np.zeros(3), 32, 24), api.Timings({"queue": 1.0}, 2.0, 3.0)),
        *(api.GaussianSettings(near=0.1), api.UnscentedTransform(), api.Rate(1e-3, 1e-4, 10), api.Loss()),
        api.AdaptiveDensity(),
    ]


@pytest.mark.parametrize("value", values(), ids=lambda value: type(value).__name__)
def test_values(value: Any, way: Callable[[Any], Any]) -> None:
    assert_same(way(value), value)


def test_a_copy_of_timings_is_read_only(way: Callable[[Any], Any]) -> None:
    timings = way(api.Timings({"kernel.blend": 1.5}))
    assert timings.kernel_ms == 1.5
    with pytest.raises(TypeError):
        timings.stages["queue"] = 1.0


def test_results(client: api.Client, way: Callable[[Any], Any]) -> None:
    handle = client.put(SCENE)
    frame = client.render(handle, [CAMERA, CAMERA], outputs=("color", "depth"), retain=True)
    found = client.query(WORLD, np.zeros((3, 4)), outputs=("distance", "normal"), retain=True)
    with client.trainer(SCENE, [CAMERA], [np.zeros((24, 32, 3), np.uint8)], rates={"sh0": 1e-3}) as trainer:
        step = trainer.step(outputs=("color",))
    file = client.render(handle, CAMERA, image_format="png")
    gradients = frame.backward(color=np.ones_like(frame.color))
    field = client.field(WORLD, size=(1, 1, 1), voxel_size=0.2)
    (item,) = client.render_batch([(handle, CAMERA)])
    for result in (handle, frame, file, gradients, found, client.info(), field, step.images, item):
        assert_same(way(result), result)
    assert way(file).encoded == file.encoded
    assert way(step).terms == step.terms and way(step).timings.stages == step.timings.stages


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy])
def test_a_copy_in_the_same_process_computes_what_it_lacks(make: Callable[[Any], Any]) -> None:
    upstream = np.ones((24, 32, 3), np.float32)
    # A worker of its own, since other tests' states may be given back at any time.
    with worker("--device", "cpu") as process, api.Client(process.target) as client:
        frame = client.render(SCENE, CAMERA, retain=True)
        found = client.query(WORLD, np.full((3, 4), 0.1), outputs=("distance",), retain=True)
        twin, double = make(frame), make(found)
        # Only the original owns its forward state: releasing a copy frees nothing.
        twin.release()
        double.release()
        del double
        assert client.info().contexts == 2
        expected = frame.backward(upstream, release=True)
        again = twin.backward(upstream)
        for name, gradient in expected.items():
            np.testing.assert_allclose(again[name], gradient, atol=1e-5)
        assert make(found).backward(distance=np.ones(3)).spheres.shape == (3, 4)
        found.release()
        wait_until(lambda: client.info().contexts == 0)
    deep = copy.deepcopy(frame)
    deep.color[:] = 7.0
    assert frame.color.max() < 7.0


def test_what_was_unpickled_has_arrays_and_no_client(client: api.Client, tmp_path: Path) -> None:
    frame = client.render(SCENE, CAMERA, retain=True)
    found = client.query(WORLD, np.zeros((3, 4)), retain=True)
    (tmp_path / "results").write_bytes(pickle.dumps((frame, found)))
    program = f"""
import pickle
from lumigrad.client import LumigradError
frame, found = pickle.load(open({str(tmp_path / "results")!r}, "rb"))
print(float(frame.color.sum()), found.distance.shape, frame.request.cameras[0].width)
for backward in (lambda: frame.backward(frame.color), lambda: found.backward(distance=found.distance)):
    try:
        backward()
    except LumigradError as error:
        print(error)
frame.release()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=250)
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert lines[0] == f"{float(frame.color.sum())} (3,) 32"
    assert [line.split(":")[0] for line in lines[1:]] == [
        "this Frame was unpickled and belongs to no client; ask a client again for gradients",
        "this Distances was unpickled and belongs to no client; ask a client again for gradients",
    ]
    again = client._rendered(pickle.loads(pickle.dumps(frame)).request)
    np.testing.assert_array_equal(again.color, frame.color)


def test_results_of_coroutines(worker_process: WorkerProcess, way: Callable[[Any], Any]) -> None:
    async def main() -> None:
        async with AsyncClient(worker_process.target) as own:
            frame = await own.render(SCENE, CAMERA, retain=True)
            found = await own.query(WORLD, np.zeros((3, 4)))
            for result in (frame, found):
                assert_same(way(result), result)
            twin = way(frame)
            if way is WAYS["pickled"]:
                with pytest.raises(api.LumigradError, match="was unpickled"):
                    await twin.backward(frame.color)
            else:
                assert (await twin.backward(frame.color)).means.shape == (40, 3)

    asyncio.run(main())


def test_spread_results(worker_process: WorkerProcess, way: Callable[[Any], Any]) -> None:
    host, port = worker_process.target.split(":")
    # Two addresses of one worker.
    with api.Client([worker_process.target, f"localhost:{port}"]) as both:
        frame = both.render(SCENE, [CAMERA] * 4, spread=True, retain=True)
        found = both.query(WORLD, np.zeros((4, 2, 3, 4)), spread=True, outputs=("distance",))
        for result in (frame, found):
            assert_same(way(result), result)
        if way is not WAYS["pickled"]:
            assert way(frame).backward(np.ones_like(frame.color)).means.shape == (40, 3)
    assert isinstance(frame, api.Frame) and isinstance(found, api.Distances) and host


def test_what_has_connections_says_why_it_is_neither_pickled_nor_copied(worker_process: WorkerProcess) -> None:
    with api.Client(worker_process.target) as own, own.stream(SCENE) as stream:
        assert copy.copy(own).info().device == own.info().device
        with own.trainer(SCENE, [CAMERA], [np.zeros((24, 32, 3), np.uint8)], rates={"sh0": 1e-3}) as trainer:
            for each in (own, AsyncClient(worker_process.target), stream, trainer, {"client": own}):
                for way in ("pickled", "copied deeply"):
                    with pytest.raises(TypeError, match=r"cannot be pickled or copied deeply.*pass the address"):
                        WAYS[way](each)
        assert next(iter(stream.frames([CAMERA]))).color.shape == (24, 32, 3)


def test_no_value_takes_the_callers_array() -> None:
    """Arrays that a value is made of stay writeable for the caller."""
    byte = np.zeros((4, 5, 3), np.uint8)
    api.TargetImage(byte, mask=byte[..., 0].copy())
    byte[0, 0] = 1
    shape = box((1.0, 1.0, 1.0))
    given = {
        "vertices": np.asarray(shape.vertices, np.float32).copy(),
        "faces": np.asarray(shape.faces, np.int32).copy(),
        "grid": np.ones((3, 3, 3), np.float32),
        "float": np.zeros((4, 5, 3), np.float32),
        "mask": np.full((4, 5), 255, np.uint8),
        "depth": np.ones((4, 5), np.float32),
        "pose": np.array([0.0, 0, 0, 1, 0, 0, 0]),
        "view": np.eye(4),
        **{name: np.array(array) for name, array in SCENE.tensors.items()},
    }
    mesh = api.Mesh(given["vertices"], given["faces"])
    api.World([api.Obstacle(mesh, given["pose"]), api.Obstacle(api.VoxelGrid(given["grid"], 0.1))])
    api.TargetImage(given["float"], mask=given["mask"], depth=given["depth"])
    api.Gaussians(**{name: given[name] for name in SCENE.tensors})
    api.Spheres(given["means"], np.ones((40, 3)), given["opacities"])
    api.Camera.opencv(10.0, 10.0, 5.0, 5.0, given["view"][:3, :3], given["view"][:3, 3], 10, 10)
    lens = api.PinholeLens(fx=100.0, fy=100.0, cx=16.0, cy=12.0)
    api.Camera.sensor(lens, given["view"][:3, :3], given["view"][:3, 3], 32, 24)
    for name, array in given.items():
        assert array.flags.writeable, name
