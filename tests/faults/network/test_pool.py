"""Workers that are killed or stopped during calls of a client that has other workers."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from lumigrad.client import Client, DeadlineExceeded
from lumigrad.client.workers.routing import ranked
from support.fault_proxy import FaultProxy
from support.workers.fleet import CAMERA, SETTINGS, cloud, fleet, homes, puts, right, targets
from support.workers.load import Load
from support.workers.worker import WorkerProcess

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
        # Forward states that died with the worker are computed again elsewhere, with the same gradients.
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


def uploaded(worker: WorkerProcess) -> float:
    return worker.metric("lumigrad_payload_bytes_total", direction="received", method="SceneService.Put")


def test_a_crowd_that_lost_its_worker_stores_its_scene_once() -> None:
    crowd, scene = 6, cloud(0, 5_000)
    with fleet(2) as workers:
        clients = [Client(targets(workers), timeout_s=120, lane="stream") for _ in range(crowd)]
        handles = [client.put(scene) for client in clients]
        expected = clients[0].render(handles[0], CAMERA, **SETTINGS).color
        home = homes(clients[0], handles[:1])[0]
        victim, other = sorted(workers, key=lambda worker: worker.target != home)
        stored, received = puts(other), uploaded(other)
        victim.signal(signal.SIGKILL)
        victim.wait()
        with ThreadPoolExecutor(2 * crowd) as threads:
            calls = [right(*each, expected) for each in zip(clients, handles, strict=True) for _ in range(2)]
            for done in [threads.submit(call) for call in calls]:
                done.result()
        assert puts(other) - stored == 1
        # Each client sends the scene at most once, however many of its threads miss it; tensors are padded for
        # alignment.
        assert scene.nbytes <= uploaded(other) - received < (crowd + 1) * scene.nbytes
        for client in clients:
            client.close()


def test_a_connection_that_falls_silent_is_left_after_a_call_that_heard_nothing() -> None:
    with fleet(2) as workers, FaultProxy(workers[0].target) as proxy:
        both = [proxy.target, workers[1].target]
        with Client(both, timeout_s=120, retry_s=60) as client:
            keys = ((it, client._workers.key(it)) for it in map(cloud, range(100)))
            scene = next(it for it, key in keys if ranked(key, both)[0] == proxy.target)
            handle = client.put(scene)
            expected = client.render(handle, CAMERA, **SETTINGS).color
            assert homes(client, [handle]) == [proxy.target]
            proxy.up.dropped = proxy.down.dropped = True
            with pytest.raises(DeadlineExceeded):
                client.render(handle, CAMERA, **SETTINGS, timeout_s=3)
            until = time.monotonic() + 150
            while True:
                try:
                    found = client.render(handle, CAMERA, **SETTINGS, timeout_s=3).color
                    break
                except DeadlineExceeded:
                    assert time.monotonic() < until, "the silent worker is asked again and again"
            np.testing.assert_array_equal(found, expected)
            assert homes(client, [handle]) == [workers[1].target]
            proxy.up.heal()
            proxy.down.heal()
            while homes(client, [handle]) != [proxy.target]:
                assert time.monotonic() < until, "the scene does not come back"
                time.sleep(0.05)
