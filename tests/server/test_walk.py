"""The number of the server's source files and functions that are executed for a call."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from lumigrad.client import Camera, Client
from lumigrad.protos.service import SINGLE_REPLY
from lumigrad.protos.streams import whole_frame
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.protos.wire import Frame
from lumigrad.v1 import image_pb2, render_pb2
from support.calls.gaussian_calls import gaussian_cloud, gaussian_spec
from support.calls.raw_calls import Arrays, RawClient, opencv_camera, spec_of, sphere_cloud
from support.gaussians.clouds import post
from support.workers.worker import WorkerProcess, worker_fixture

# Files for a Render, including the shortcuts for Renders, which check each of them first.
MOST_FILES = 29
# Functions for the same call; generators count once for each item.
MOST_FUNCTIONS = 440
# Functions for a training step that needs no Python; steps of spheres need Python, and execute 300.
MOST_FOR_A_STEP = 100
# Files for a call of a kind that has been prepared.
MOST_PREPARED = 15
# Files for the same call if the reply is a single message.
MOST_SHORT = 8
process = worker_fixture(before=("from support.workers import traced_worker", "traced_worker.begin()"))


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("is_single", [False, True])
@pytest.mark.parametrize("kind", ["spheres", "gaussians"])
def test_a_render_of_a_stored_scene_goes_through_few_files(
    process: WorkerProcess, kind: str, is_single: bool, is_first: bool
) -> None:
    client = RawClient(process.target)
    cloud, spec_for = (sphere_cloud(), spec_of) if kind == "spheres" else (gaussian_cloud(80), gaussian_spec)
    scene_id, lists = put(process, client, cloud), []
    # The first call creates what the later ones reuse.
    for index in range(4):
        camera = opencv_camera(32, 24)
        # A call with another lens is of another kind.
        camera.opencv.cx += 1 + index if is_first else 0
        camera.opencv.cy += is_single
        spec = spec_for(camera, scene_id=scene_id)
        if is_single:
            request = Frame(render_pb2.RenderRequest(spec=spec))
            once = client.render_stub.Render.once
            lists.append(files_of(process, partial(once, request, timeout=60, metadata=(SINGLE_REPLY,))))
        else:
            lists.append(files_of(process, partial(client.render, spec)))
    # The end of a call may be counted in the list of the next one.
    files = min(lists[-2:], key=len)
    assert is_first == (f"engines/{kind}.py" in files)
    most_prepared = MOST_SHORT if is_single else MOST_PREPARED
    assert len(files) <= (MOST_FILES if is_first else most_prepared), sorted(files)
    assert min(functions_of(process)[-2:]) <= MOST_FUNCTIONS
    client.close()


def files_of(process: WorkerProcess, call: Callable[[], object]) -> list[str]:
    """Makes a call; returns the files that were executed for it once they are in the log, after those of all others."""
    traces = process.log.count("files [")
    call()
    process.wait_for_log("files [", count=traces + 1)
    found: list[str] = json.loads(re.findall(r"^files (\[.*\])$", process.log, re.MULTILINE)[traces])
    return found


def put(process: WorkerProcess, client: RawClient, cloud: Arrays) -> str:
    """Stores a scene, and waits until the list of its call is in the log; returns its name."""
    own = '"rpc/scenes.py"'
    before = process.log.count(own)
    scene_id: str = client.put(cloud).scene.scene_id
    process.wait_for_log(own, count=before + 1)
    return scene_id


def functions_of(process: WorkerProcess) -> list[int]:
    """Returns the numbers of functions that were executed for the calls that have ended."""
    return [int(count) for count in re.findall(r"^functions (\d+)$", process.log, re.MULTILINE)]


def test_steps_of_a_training_need_little_python(process: WorkerProcess) -> None:
    camera = Camera.look_at((0, -1, -5), (0, 0, 0), up=(0, -1, 0), width=32, height=24)
    executed = []
    with Client(process.target, lane="stream") as client:
        for steps in (64, 320):
            traces = process.log.count("method=TrainingService.Train")
            with client.trainer(post(steps), [camera], [np.ones((24, 32, 3), np.float32)]) as trainer:
                assert len(list(trainer.steps(steps))) == steps
            process.wait_for_log("method=TrainingService.Train", count=traces + 1)
            executed.append(max(functions_of(process)))
    assert (executed[1] - executed[0]) / 256 <= MOST_FOR_A_STEP


@pytest.mark.parametrize("kind", ["a file", "many messages"])
def test_a_long_render_of_a_known_kind_is_not_planned_again(process: WorkerProcess, kind: str) -> None:
    client, size = RawClient(process.target), (32, 24) if kind == "a file" else (640, 480)
    scene_id = put(process, client, gaussian_cloud(80))
    formats = [image_pb2.OutputFormat(name="color", format=image_pb2.IMAGE_FORMAT_PNG)] if kind == "a file" else []
    planned = []
    for x in (0.0, 0.1, 0.2):
        spec = gaussian_spec(opencv_camera(*size, x=x), scene_id=scene_id)
        planned.append("engines/gaussians.py" in files_of(process, partial(client.render, spec, formats=formats)))
    assert planned[0] and not planned[-1]
    client.close()


@pytest.mark.parametrize("image_format", ["float32", "uint8"])
def test_a_render_by_a_lane_of_a_known_kind_is_not_planned_again(process: WorkerProcess, image_format: str) -> None:
    lists: list[list[str]] = []
    with Client(process.target, lane="shared") as client:
        scene, angles = client.put(post()), itertools.count()
        # A client that waited too long for a lane uses the stream, and asks for another lane later.
        while sum("shm/payload.py" in files for files in lists) < 4:
            camera = Camera.orbit((0, 0, 0), 4, next(angles), 20, width=768, height=480)
            render = partial(client.render, scene, camera, image_format=image_format)  # type: ignore[arg-type]
            lists.append(files_of(process, render))
    # The lists of the first calls may be those of calls that opened the lane, whose ends come at any time.
    assert any("engines/gaussians.py" in files for files in lists) and "engines/gaussians.py" not in lists[-1]
    assert len(lists[-1]) <= MOST_PREPARED, lists[-1]


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [("gaussians", ("means", "cameras", "background")), ("spheres", ("positions", "opacities", "background"))],
)
def test_a_backward_of_a_known_kind_is_not_planned_again(
    process: WorkerProcess, kind: str, wanted: tuple[str, ...]
) -> None:
    client, color = RawClient(process.target), np.ones((1, 24, 32, 3), np.float32)
    cloud, spec_for = (sphere_cloud(), spec_of) if kind == "spheres" else (gaussian_cloud(80), gaussian_spec)
    scene_id, planned = put(process, client, cloud), []
    for x in (0.0, 0.1, 0.2, 0.3):
        request = Frame(render_pb2.RenderRequest(spec=spec_for(opencv_camera(32, 24, x=x), scene_id=scene_id)))
        request.message.retain = True
        replies: list[Any] = []
        once = partial(client.render_stub.Render.once, request, timeout=60, metadata=(SINGLE_REPLY,))
        files_of(process, lambda once=once, replies=replies: replies.append(once()))  # type: ignore[misc]
        payload = PayloadWriter()
        spec = render_pb2.BackwardSpec(context_id=replies[0].message.context_id, wanted=wanted)
        spec.output_gradients.add(name="color", tensor=payload.add(color))
        backward = whole_frame(render_pb2.BackwardRequest(spec=spec), payload)
        once = partial(client.render_stub.Backward.once, backward, timeout=60, metadata=(SINGLE_REPLY,))
        planned.append("engines/gradients.py" in files_of(process, once))
    assert planned[0] and not planned[-1]
    client.close()
