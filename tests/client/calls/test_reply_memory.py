"""The arrays of a reply keep their values while later replies reuse memory that was freed."""

from __future__ import annotations

import numpy as np
import pytest

from lumigrad.client import Camera, Client, Gaussians
from support.workers.worker import WorkerProcess


def test_gradients_of_one_call_outlive_the_next(worker_process: WorkerProcess) -> None:
    count = 160_000
    rng = np.random.default_rng(0)
    scene = Gaussians(
        rng.normal(size=(count, 3)),
        rng.normal(size=(count, 4)),
        np.full((count, 3), 0.01),
        np.full(count, 0.5),
        sh=rng.normal(size=(count, 16, 3)),
    )
    camera = Camera.look_at((0, 0, -5), (0, 0, 0), width=64, height=48)
    with Client(worker_process.target, lane="stream") as client:
        frame = client.render(client.put(scene), camera, retain=True)
        upstream = rng.normal(size=(48, 64, 3)).astype(np.float32)
        first = frame.backward(upstream)
        kept = {name: array.copy() for name, array in first.items()}
        second = frame.backward(2 * upstream)
        for name, expected in kept.items():
            assert (first[name] == expected).all()
            np.testing.assert_allclose(second[name], 2 * expected, rtol=1e-4, atol=1e-6)
        # Another thread may take the memory first.
        for _ in range(20):
            memory = first["sh"].ctypes.data
            del first
            first = frame.backward(upstream)
            for name, expected in kept.items():
                assert (first[name] == expected).all()
            if first["sh"].ctypes.data == memory:
                break
        else:
            pytest.fail("no reply reused memory")
