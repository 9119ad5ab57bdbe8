"""JPEG files of a worker whose device encodes them: in every way by which images are sent, and when encoding fails."""

from __future__ import annotations

import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
from PIL import Image

from lumigrad.protos.tensors import PayloadReader
from lumigrad.v1 import image_pb2, render_pb2
from support.backends import emulation
from support.backends.emulated_copies import NVJPEG
from support.backends.nvjpeg import FAILS, HELD_BY, StandInFile, build
from support.calls.gaussian_calls import gaussian_cloud, gaussian_spec
from support.calls.raw_calls import RawClient, Reply, failure, opencv_camera, spec_of, sphere_cloud
from support.calls.raw_frames import RawFrames
from support.calls.repeats import GENERAL_PATH, TELL_OF_GENERAL_PATH
from support.driving.scenes import FRONT, WIDE, frame, street
from support.driving.stubs import JPEG, PLANAR, DrivingClient
from support.workers.slow_render import wait_for, wait_until
from support.workers.worker import WorkerProcess, worker

WARNING = "nvJPEG has failed; the CPU encodes JPEG files instead"
# States that the worker's encoder keeps.
MOST = 4
UINT8 = [image_pb2.OutputFormat(name="color", format=image_pb2.IMAGE_FORMAT_UINT8)]


def formats_of(quality: int = 0) -> list[image_pb2.OutputFormat]:
    return [image_pb2.OutputFormat(name="color", format=image_pb2.IMAGE_FORMAT_JPEG, quality=quality)]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvjpeg"))


@pytest.fixture(scope="module")
def hold(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """While this file exists, encoders wait."""
    return tmp_path_factory.mktemp("hold") / "hold"


def has_loaded(process: WorkerProcess, library: Path) -> bool:
    return any(each.path == str(library) for each in psutil.Process(process.process.pid).memory_maps())


@contextmanager
def emulated(library: Path, *options: str, **variables: str) -> Iterator[WorkerProcess]:
    emulation.load("_emulation")
    told = {NVJPEG: str(library), **variables}
    with worker(
        "--device", "cpu", *options, emulated=True, variables=told, before=TELL_OF_GENERAL_PATH
    ) as started:  # fmt: skip
        yield started
        assert "mistake: " not in started.log, started.log


@pytest.fixture(scope="module")
def process(library: Path, hold: Path) -> Iterator[WorkerProcess]:
    with emulated(library, **{HELD_BY: str(hold)}) as started:
        yield started
        assert WARNING not in started.log
        assert has_loaded(started, library)


@pytest.fixture(params=["gaussians", "spheres"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def stored(client: RawClient, kind: str, *cameras: Any) -> render_pb2.RenderSpec:
    cloud, spec_for = (sphere_cloud(60), spec_of) if kind == "spheres" else (gaussian_cloud(60), gaussian_spec)
    scene_id = client.put(cloud).scene.scene_id
    return spec_for(*(cameras or (opencv_camera(),)), scene_id=scene_id, outputs=["color", "alpha"])


def files_of(content: np.ndarray, lengths: Any) -> list[bytes]:
    ends = np.cumsum(lengths)
    return [content[end - length : end].tobytes() for end, length in zip(ends, lengths, strict=True)]


def check(reply: Reply, levels: Reply, quality: int = 90) -> None:
    """Checks that files of a device have the pixels of another reply, whose other outputs are equal."""
    lengths = next(entry.encoded.lengths for entry in reply.header.outputs if entry.name == "color")
    files = [StandInFile.of(file) for file in files_of(reply.arrays["color"], lengths)]
    np.testing.assert_array_equal([file.levels for file in files], levels.arrays["color"])
    assert {(file.quality, file.are_colors_halved) for file in files} == {(quality, quality < 90)}
    np.testing.assert_array_equal(reply.arrays["alpha"], levels.arrays["alpha"])


@pytest.mark.parametrize("quality", [0, 75, 100])
def test_renders(process: WorkerProcess, client: RawClient, kind: str, quality: int) -> None:
    before = None
    for view in range(3):
        spec = stored(client, kind, opencv_camera(x=0.1 * view), opencv_camera(x=0.3))
        levels = client.render(spec, formats=UINT8)
        before = process.log.count(GENERAL_PATH) if view == 1 else before
        check(client.render(spec, formats=formats_of(quality)), levels, quality or 90)
    # The first of its kind takes the general path.
    assert process.log.count(GENERAL_PATH) == before


def test_renders_of_scenes_in_the_call(client: RawClient, kind: str) -> None:
    cloud, spec_for = (sphere_cloud(60), spec_of) if kind == "spheres" else (gaussian_cloud(60), gaussian_spec)
    spec = spec_for(opencv_camera(), outputs=["color", "alpha"])
    check(client.render(spec, cloud=cloud, formats=formats_of()), client.render(spec, cloud=cloud, formats=UINT8))


def test_retained_renders(client: RawClient, kind: str) -> None:
    spec = stored(client, kind)
    levels = client.render(spec, formats=UINT8)
    for _ in range(2):
        check(client.render(spec, formats=formats_of(), retain=True), levels)


def test_batches(client: RawClient, kind: str) -> None:
    spec = stored(client, kind)
    items = [render_pb2.RenderItem(spec=spec, formats=formats_of(quality)) for quality in (75, 75, 95)]
    batch, levels = client.render_batch(*items), client.render(spec, formats=UINT8)
    for item, arrays, quality in zip(batch.items, batch.arrays, (75, 75, 95), strict=True):
        lengths = next(entry.encoded.lengths for entry in item.outputs if entry.name == "color")
        (file,) = map(StandInFile.of, files_of(arrays["color"], lengths))
        assert file.quality == quality
        np.testing.assert_array_equal(file.levels, levels.arrays["color"][0])


def test_streams(client: RawClient, kind: str) -> None:
    cameras = [opencv_camera(x=0.1 * view) for view in range(5)]
    spec = stored(client, kind, cameras[0])
    with RawFrames(client) as frames:
        frames.send(render=render_pb2.RenderRequest(spec=spec, formats=formats_of()))
        for camera in cameras[1:]:
            frames.send(cameras=[camera], pipelined=True)
        for camera in cameras:
            answer = frames.receive()
            assert answer.reply is not None
            color = next(entry for entry in answer.reply.outputs if entry.name == "color")
            content = PayloadReader(answer.data).read(color.tensor, "color")
            del spec.cameras[:]
            spec.cameras.append(camera)
            (file,) = map(StandInFile.of, files_of(content, color.encoded.lengths))
            np.testing.assert_array_equal(file.levels, client.render(spec, formats=UINT8).arrays["color"][0])


def test_pictures_of_simulators(library: Path, tmp_path: Path) -> None:
    place = street(tmp_path)
    with (
        emulated(library, "--sensorsim", str(place.folder)) as process,
        DrivingClient(process.target) as simulator,
    ):

        def levels_of(camera: str) -> np.ndarray:
            planes = simulator.call("render_rgb", frame(camera, image_format=PLANAR)).image_bytes
            return np.frombuffer(planes, np.uint8).reshape(3, -1)

        requests = [frame(camera, image_format=JPEG, image_quality=80) for camera in (WIDE, FRONT)]
        alone = [simulator.call("render_rgb", request).image_bytes for request in requests]
        items = [{"camera_name": str(i), "request": request} for i, request in enumerate(requests)]
        batch = [item.result.image_bytes for item in simulator.call("batch_render_rgb", items=items).items]
        for camera, *files in zip((WIDE, FRONT), alone, batch, strict=True):
            for file in map(StandInFile.of, files):
                assert (file.quality, file.are_colors_halved) == (80, True)
                np.testing.assert_array_equal(file.levels.transpose(2, 0, 1).reshape(3, -1), levels_of(camera))


def test_calls_that_end_leave_no_state_behind(process: WorkerProcess, client: RawClient, hold: Path) -> None:
    spec = stored(client, "gaussians")
    levels = client.render(spec, formats=UINT8)

    def ended() -> float:
        # The worker may hear of a caller's end before its own clock has reached the deadline.
        codes = grpc.StatusCode.DEADLINE_EXCEEDED.name, grpc.StatusCode.CANCELLED.name
        return sum(process.metric("lumigrad_calls_total", method="RenderService.Render", code=code) for code in codes)

    def are_late(timeout: float) -> bool:
        """Makes calls whose deadlines pass; returns whether all but those with an encoder ended on the worker."""
        before = ended()
        with ThreadPoolExecutor(3 * MOST) as threads:
            late = [
                threads.submit(failure, lambda: client.render(spec, formats=formats_of(), timeout=timeout))
                for _ in range(3 * MOST)
            ]
            assert {each.result().code() for each in late} == {grpc.StatusCode.DEADLINE_EXCEEDED}
        # Calls that wait for an encoder end on the worker, too, although none becomes free.
        wait_until(lambda: process.metric("lumigrad_calls_in_progress") <= MOST, "the end of calls that wait", 60.0)
        return ended() >= before + 2 * MOST

    hold.touch()
    try:
        # A busy worker does not begin calls whose deadlines have passed.
        assert any(map(are_late, (1.0, 5.0, 25.0)))
        wait_for(process, "lumigrad_calls_in_progress", MOST)
    finally:
        hold.unlink()
    with ThreadPoolExecutor(2 * MOST) as threads:
        for reply in threads.map(lambda _: client.render(spec, formats=formats_of()), range(4 * MOST)):
            check(reply, levels)


@pytest.mark.parametrize("function", ["nvjpegCreateSimple", "nvjpegEncodeImage"])
def test_the_cpu_encodes_if_the_library_fails(library: Path, function: str) -> None:
    with emulated(library, **{FAILS: function}) as process, RawClient(process.target) as client:
        spec = stored(client, "gaussians")
        levels = client.render(spec, formats=UINT8).arrays["color"]
        for _ in range(3):
            reply = client.render(spec, formats=formats_of(100))
            shown = np.asarray(Image.open(io.BytesIO(reply.arrays["color"].tobytes())), np.float64)
            assert np.abs(shown - levels[0]).mean() < 2
    assert process.log.count(WARNING) == 1
    assert f"{function} returned 6" in process.log


def test_a_worker_on_the_cpu_does_not_load_the_library(tmp_path: Path) -> None:
    folder = tmp_path / "nvidia" / "cu13" / "lib"
    folder.mkdir(parents=True)
    library = build(folder)
    installed = (f"import sys, torch; sys.path.insert(0, {str(tmp_path)!r}); torch.version.cuda = '13.0'",)
    with worker("--device", "cpu", before=installed) as process:
        client = RawClient(process.target)
        reply = client.render(stored(client, "gaussians"), formats=formats_of())
        assert Image.open(io.BytesIO(reply.arrays["color"].tobytes())).format == "JPEG"
        client.close()
        assert not has_loaded(process, library)
