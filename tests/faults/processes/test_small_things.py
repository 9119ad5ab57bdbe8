"""Thousands of small scenes and forward states: their number is limited, and their memory is counted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from support.calls.raw_calls import RawClient, color_gradient, opencv_camera, spec_of, sphere_cloud
from support.workers.tenant import tenant_client
from support.workers.worker import WorkerProcess, worker, worker_fixture

ANNA, BEN = (f"{name}-0123456789abcdef" for name in ("anna", "ben"))
LIMITS = ("--max-payload-mib", "1", "--scene-mib", "2", "--context-mib", "2", "--max-scenes", "64")
PIXEL = opencv_camera(1, 1)
process = worker_fixture(*LIMITS, "--max-contexts", "64", tokens={"anna": ANNA, "ben": BEN})


@pytest.fixture(scope="module")
def clients(process: WorkerProcess) -> Iterator[tuple[RawClient, RawClient]]:
    with process.channel() as channel:
        yield tenant_client(channel, ANNA), tenant_client(channel, BEN)


def retained(client: RawClient, seed: int, size: int = 1) -> str:
    camera = opencv_camera(size, size)
    return client.render(spec_of(camera), cloud=sphere_cloud(1, seed=seed), retain=True).header.context_id


@pytest.mark.parametrize(("count", "size"), [(1, 1), (15_000, 128)])
def test_a_flood_costs_no_other_tenant_anything(
    process: WorkerProcess, clients: tuple[RawClient, RawClient], count: int, size: int
) -> None:
    """The number of the smallest things is limited, and two of the larger ones fit into a share."""
    anna, ben = clients
    # A third of each limit.
    scenes = [ben.put(sphere_cloud(20, seed=1000 + seed)).scene.scene_id for seed in range(20)]
    states = [retained(ben, seed) for seed in range(20)]
    gradient = {"color": color_gradient(1, 1, 1, 3)}
    expected = ben.render(spec_of(PIXEL, scene_id=scenes[0])).arrays["color"]
    for seed in range(100 if count == 1 else 10):
        anna.put(sphere_cloud(count, seed=seed))
        assert retained(anna, seed, size)
    assert process.metric("lumigrad_scenes") <= 64 and process.metric("lumigrad_contexts") <= 64
    assert process.metric("lumigrad_scene_bytes") <= 2 << 20 and process.metric("lumigrad_context_bytes") <= 2 << 20
    for store in ("scenes", "contexts"):
        assert process.metric("lumigrad_evictions_total", store=store, reason="room") > 0
    for scene_id, state in zip(scenes, states, strict=True):
        assert ben.get(scene_id=scene_id)[0].info.version == 1
        assert ben.backward(gradient, context_id=state, release=True).arrays
    assert np.array_equal(ben.render(spec_of(PIXEL, scene_id=scenes[0])).arrays["color"], expected)
    assert ben.backward(gradient, context_id=retained(ben, 7), release=True).arrays
    assert not ben.put(sphere_cloud(30, seed=count)).existed


def test_what_small_things_take_is_counted() -> None:
    with worker("--device", "cpu") as process, RawClient(process.target) as client:
        for seed in range(2):
            # The first ones allocate memory that all later ones share.
            for number in range(50 if seed == 0 else 900):
                client.put(sphere_cloud(1, seed=1000 * seed + number))
                retained(client, number)
            if seed == 0:
                before = resident_bytes(process.process.pid), counted(process)
        grown = resident_bytes(process.process.pid) - before[0]
        assert grown <= counted(process) - before[1] + (8 << 20)


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def counted(process: WorkerProcess) -> float:
    return process.metric("lumigrad_scene_bytes") + process.metric("lumigrad_context_bytes")
