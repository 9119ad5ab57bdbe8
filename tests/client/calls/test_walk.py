"""The length of a call's path through the client: the source files and functions that it executes."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import numpy as np
import pytest

import lumigrad.client
import lumigrad.protos
from lumigrad.client import Camera, Client, Cuboid, Gaussians, Spheres, World
from support.gaussians.clouds import post
from support.workers.client_load import client_fixture

CLIENT, PROTOS = (f"{Path(room.__file__ or '').parent}/" for room in (lumigrad.client, lumigrad.protos))
CAMERA = Camera.look_at((0, -1, -5), (0, 0, 0), up=(0, -1, 0), width=32, height=24)
CLOUD = Spheres([[0, 0, 0]], [[1, 1, 1]], [1])
MOST_FILES = 20


streaming = client_fixture("worker_process", lane="stream")


def check(call: Callable[[], object], most_calls: int) -> None:
    """Fails if a warm call executes more functions of client and protos; a generator counts once for each item."""
    walked: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith((CLIENT, PROTOS)):
            walked.append((frame.f_code.co_filename, frame.f_code.co_name))

    # The first calls create what the later ones reuse.
    for _ in range(3):
        call()
    # A collection during the call would count, since it finalizes what earlier tests have left.
    gc.collect()
    gc.disable()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
        gc.enable()
    files = {file.removeprefix(CLIENT) for file, _ in walked if file.startswith(CLIENT)}
    assert len(files) <= MOST_FILES, sorted(files)
    assert len(walked) <= most_calls, [name for _, name in walked]


@pytest.mark.parametrize("scene", [post(), CLOUD], ids=["gaussians", "spheres"])
def test_a_render_of_a_stored_scene_takes_few_steps(streaming: Client, scene: Gaussians | Spheres) -> None:
    stored = streaming.put(scene)
    depth = {} if isinstance(scene, Gaussians) else {"max_depth": 9.0}
    check(lambda: streaming.render(stored, CAMERA, outputs=("color", "alpha"), **depth), 80)


def test_a_query_and_gradients_take_few_steps(streaming: Client) -> None:
    world = streaming.put(World(Cuboid((1, 1, 1))))
    check(lambda: streaming.query(world, np.ones((8, 4), np.float32)), 90)
    frame = streaming.render(streaming.put(post()), CAMERA, retain=True)
    check(lambda: frame.backward(np.ones_like(frame.color)), 105)
