"""A call releases everything that it holds when it ends, not only once Python's garbage collector runs."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from lumigrad.client import Camera, Client, Cuboid, DeadlineExceeded, LumigradError, Mesh, Obstacle, Spheres, World
from support.training.scenes import gaussian_lesson
from support.training.streets import ROW_BYTES, street_lesson
from support.workers.worker import WorkerProcess, worker

# A worker that collects garbage only when a file exists, and then logs which garbage may hold memory.
PROGRAM = """
import gc, mmap, os, sys, threading, time
import numpy, torch
from lumigrad.client.cli import main

gc.disable()

def look(path):
    while True:
        time.sleep(0.02)
        if os.path.exists(path):
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            kinds = {type(it) for it in gc.garbage}
            held = (torch.Tensor, numpy.ndarray, mmap.mmap, memoryview)
            found = [kind for kind in kinds if kind.__module__.startswith("lumigrad") or issubclass(kind, held)]
            names = " ".join(sorted(kind.__qualname__ for kind in found))
            # One text, between whose parts no other thread can write.
            print(f"garbage: {names} end", file=sys.stderr, flush=True)
            gc.garbage.clear()
            os.remove(path)

threading.Thread(target=look, args=[sys.argv.pop(1)], daemon=True).start()
sys.exit(main())
"""
LESSON = gaussian_lesson(60)
STREET = street_lesson(3000, seed=1)
# Large enough for shared memory.
LARGE = gaussian_lesson(30_000)
SPHERES = Spheres(
    np.random.default_rng(0).normal(size=(200_000, 3)), np.full((200_000, 3), 0.5), np.full(200_000, 0.01)
)
WIDE = [Camera.look_at((0, 0, 4), (0, 0, 0), width=640, height=480)] * 8


def render(client: Client) -> None:
    handle = client.put(LESSON.scene)
    client.render(LESSON.scene, LESSON.cameras[0])
    frame = client.render(handle, LESSON.cameras, retain=True)
    frame.backward(color=np.ones_like(frame.color))
    with client.stream(handle, image_format="jpeg") as stream:
        assert len(list(stream.frames(LESSON.cameras))) == len(LESSON.cameras)


def change(client: Client) -> None:
    for scene in (LESSON.scene, LARGE.scene):
        handle = client.update(client.put(scene), means=np.zeros((len(scene), 3), np.float32))
        assert client.get(handle.scene_id, with_tensors=True).scene is not None
        client.render(scene, LESSON.cameras[0])
        client.delete(handle)


def query(client: Client) -> None:
    mesh = Mesh(np.eye(4, 3), [[0, 1, 2], [0, 3, 1], [1, 3, 2], [2, 3, 0]])
    world = World([Obstacle(mesh), Cuboid((1, 1, 1))])
    client.query(world, np.ones((1, 2, 3, 4)))
    client.query(client.put(world), np.ones((1, 2, 3, 4)), outputs=("distance", "cost"))


def refuse(client: Client) -> None:
    handle = client.put(LESSON.scene)
    with pytest.raises(LumigradError):
        client.render(handle, LESSON.cameras[0], outputs=("color",), sh_degree=4)
    with client.trainer(LESSON.scene, LESSON.cameras) as trainer, pytest.raises(LumigradError):
        trainer.step()


def run_late(client: Client) -> None:
    """Time-outs that expire while a call waits for the device or runs there."""
    handle = client.put(LARGE.scene)
    began = time.monotonic()
    client.render(handle, WIDE)
    seconds = time.monotonic() - began
    for part in (0.3, 0.5, 0.7, 0.9):
        with suppress(DeadlineExceeded):
            client.render(handle, WIDE, timeout_s=part * seconds)


def arrive_late(client: Client) -> None:
    """Time-outs that are over while the scene of a call arrives."""
    with Client(client.target, lane="stream") as slow:
        for scene in (SPHERES, LARGE.scene):
            began = time.monotonic()
            slow.render(scene, WIDE[:1], timeout_s=60)
            seconds = time.monotonic() - began
            for part in np.linspace(0.02, 0.9, 12):
                with suppress(DeadlineExceeded):
                    slow.render(scene, WIDE[:1], timeout_s=part * seconds)


def train(client: Client) -> None:
    images = LESSON.target_images(client)
    with client.trainer(LESSON.scene, LESSON.cameras, images, snapshot_every=4) as trainer:
        list(trainer.steps(6))
        trainer.publish()
        trainer.scene()
    with client.trainer(LESSON.scene, LESSON.cameras) as trainer:
        for batch in trainer.batches(2, outputs=("color",)):
            batch.apply(color=np.ones_like(batch.color))


def train_in_blocks(client: Client) -> None:
    images = STREET.target_images(client)
    with client.trainer(STREET.scene, STREET.cameras, images, pool_bytes=1792 * ROW_BYTES) as trainer:
        list(trainer.steps(3))
        trainer.snapshot()


@pytest.mark.parametrize("use", [render, change, query, refuse, run_late, arrive_late, train, train_in_blocks])
def test_calls_leave_no_garbage(use: Callable[[Client], None], tmp_path: Path) -> None:
    sign = tmp_path / "look"
    command = (sys.executable, "-c", PROGRAM, str(sign), "serve")
    with worker("--device", "cpu", "--spool", str(tmp_path / "spool"), command=command) as process:
        with Client(process.target) as client:
            # Imports by the first call leave some garbage.
            use(client)
            collect(process, sign, 1)
            use(client)
        assert collect(process, sign, 2) == ""


def collect(process: WorkerProcess, sign: Path, count: int) -> str:
    """Have the worker collect garbage for the `count`-th time; returns the kinds of garbage."""
    sign.touch()
    process.wait_for_log("garbage: ", count=count)
    return re.findall(r"garbage: (.*) end$", process.log, re.M)[count - 1].strip()
