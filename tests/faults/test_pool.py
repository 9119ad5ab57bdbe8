"""Workers that are killed or stopped under the calls of a client that has others."""

from __future__ import annotations

import signal

import numpy as np

from lumigrad.client import Client
from support.fleet import CAMERA, SETTINGS, cloud, fleet, homes, puts, right, targets
from support.load import Load

SCENES = 18


def test_a_killed_worker_costs_no_call_and_moves_no_other_scene() -> None:
    with fleet(3) as workers, Client(targets(workers), timeout_s=120, retry_s=60) as client:
        handles = [client.put(cloud(seed)) for seed in range(SCENES)]
        pictures = [client.render(handle, CAMERA, **SETTINGS).color for handle in handles]
        frames = [client.render(handle, CAMERA, retain=True, **SETTINGS) for handle in handles]
        upstream = np.ones_like(pictures[0])
        gradients = [frame.backward(upstream) for frame in frames]
        before = homes(client, handles)
        victim = next(worker for worker in workers if worker.target == before[0])
        others = [worker for worker in workers if worker is not victim]
        stored = sum(puts(worker) for worker in others)
        calls = [right(client, handle, picture) for handle, picture in zip(handles, pictures, strict=True)]
        with Load(calls, rate=30) as load:
            load.wait_for_progress()
            victim.signal(signal.SIGKILL)
            victim.wait()
            load.wait_for_progress(2 * SCENES)
        assert not load.failed, load.failures
        after = homes(client, handles)
        for old, new in zip(before, after, strict=True):
            assert new != victim.target
            assert new == old or old == victim.target
        # States that died with it are computed again elsewhere, with the same gradients.
        for frame, expected in zip(frames, gradients, strict=True):
            for name, gradient in frame.backward(upstream).items():
                np.testing.assert_array_equal(gradient, expected[name])
        assert sum(puts(worker) for worker in others) - stored == before.count(victim.target)


def test_a_worker_that_stops_is_left_in_time() -> None:
    with fleet(2) as workers, Client(targets(workers), timeout_s=120, retry_s=60) as client:
        handles = [client.put(cloud(seed)) for seed in range(SCENES)]
        pictures = [client.render(handle, CAMERA, **SETTINGS).color for handle in handles]
        calls = [right(client, handle, picture) for handle, picture in zip(handles, pictures, strict=True)]
        leaving, staying = workers
        with Load(calls, rate=30) as load:
            load.wait_for_progress()
            leaving.signal(signal.SIGTERM)
            assert leaving.wait() == 0
            load.wait_for_progress()
        assert not load.failed, load.failures
        assert set(homes(client, handles)) == {staying.target}
