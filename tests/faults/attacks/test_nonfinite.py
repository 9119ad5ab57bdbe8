"""Diverging losses: NaN spreads only where it belongs, is counted, and affects nothing and nobody else."""

from __future__ import annotations

import time

import numpy as np
import pytest

from lumigrad.client import Camera, Client, Cuboid, Gradients, Obstacle, World
from support.calls.verbs import gaussians, spheres
from support.workers.client_load import client_fixture
from support.workers.worker import WorkerProcess

SIZE = 64
CAMERA = Camera.look_at(eye=(0, -1, -5), target=(0, 0, 0), up=(0, -1, 0), width=SIZE, height=SIZE)
NAMES = {"spheres": ("positions", "colors", "radii"), "gaussians": ("means", "quats", "scales", "opacities", "colors")}
SCENES = {"spheres": spheres, "gaussians": gaussians}


client = client_fixture("process", scope="module")


def counted(process: WorkerProcess, engine: str) -> float:
    return process.metric("lumigrad_nonfinite_gradients_total", engine=engine)


def wait_for_count(process: WorkerProcess, engine: str, count: float) -> None:
    """Waits for the count, which is updated when the call ends, possibly after its caller has the reply."""
    until = time.monotonic() + 150
    while counted(process, engine) < count:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert counted(process, engine) == count


def nonfinite(gradients: Gradients) -> int:
    return sum(int((~np.isfinite(array)).sum()) for array in gradients.values())


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("engine", SCENES)
@pytest.mark.parametrize("sparse", [False, True])
def test_what_is_no_number_stays_with_those_it_concerns(
    process: WorkerProcess, client: Client, engine: str, value: float, sparse: bool
) -> None:
    frame = client.render(SCENES[engine](), CAMERA, retain=True)
    upstream = np.random.default_rng(2).normal(size=frame.color.shape).astype(np.float32)
    good = frame.backward(upstream)
    before = counted(process, engine)
    bad_pixel = upstream.copy()
    bad_pixel[SIZE // 2, SIZE // 2, 1] = value
    spoilt = frame.backward(bad_pixel, sparse=sparse)
    found = nonfinite(spoilt)
    assert found > 0
    wait_for_count(process, engine, before + found)
    process.wait_for_log(f" nonfinite={found}")
    # Primitives that are not in that pixel keep their gradients.
    rows = spoilt["index"] if sparse else np.arange(len(good[NAMES[engine][0]]))
    spared = np.all([np.isfinite(spoilt[name]).reshape(len(rows), -1).all(1) for name in NAMES[engine]], axis=0)
    assert spared.mean() > 0.5
    for name in NAMES[engine]:
        np.testing.assert_array_equal(spoilt[name][spared], good[name][rows][spared], err_msg=name)
    # The differentiated state is unchanged.
    again = frame.backward(upstream)
    for name, array in good.items():
        np.testing.assert_array_equal(again[name], array, err_msg=name)
    wait_for_count(process, engine, before + found)


def test_distances(process: WorkerProcess, client: Client) -> None:
    rows = np.array([[0.6, 0, 0, 0.1], [0.5, 0.1, 0, 0.1]], np.float32)
    world = World([Obstacle(Cuboid((1, 1, 1)))])
    found = client.query(world, rows, outputs=("cost",), activation_distance=0.2, retain=True)
    good, before = found.backward(np.ones_like(found.cost)), counted(process, "meshes")
    spoilt = found.backward(np.array([np.nan, 1.0], np.float32))
    assert np.isnan(spoilt.spheres[0]).any()
    np.testing.assert_array_equal(spoilt.spheres[1], good.spheres[1])
    wait_for_count(process, "meshes", before + nonfinite(spoilt))


def test_half_precision_that_is_too_small_is_counted(process: WorkerProcess, client: Client) -> None:
    frame = client.render(spheres(), CAMERA)
    before = counted(process, "spheres")
    upstream = np.full(frame.color.shape, 1e9, np.float32)
    assert nonfinite(frame.backward(upstream)) == 0
    found = nonfinite(frame.backward(upstream, gradient_format="float16"))
    assert found > 0
    wait_for_count(process, "spheres", before + found)
