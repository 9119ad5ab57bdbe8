"""Benchmark of one client over several workers: `python -m tests.benchmarks.pool` from the root of the repository.

Two ways to choose among three workers are compared with a client of one of them, in turn: the client's own pool, and
gRPC's ring hash (`ring_hash_experimental`, one channel over all addresses) with the scene's name as the header to hash.
Then one worker is killed, and another one stopped, under calls at a fixed rate.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from lumigrad.client import Camera, Client, SceneHandle
from lumigrad.client.transport import connection
from lumigrad.client.transport.call import AFFINITY_METADATA
from support.workers.fleet import CAMERA, SETTINGS, cloud, fleet, puts, targets
from support.workers.load import Load
from support.workers.worker import WorkerProcess
from tests.benchmarks.measure import write

RESULTS = Path("build/bench/pool.json")
# gRPC's C core only reads a header for the ring if this is set before the import.
_RING_VARIABLE = "GRPC_EXPERIMENTAL_RING_HASH_SET_REQUEST_HASH_KEY"
_SCENES = 24
_RATE = 40.0
_FULL_HD = Camera.look_at(eye=(0, -1, -5), target=(0, 0, 0), up=(0, -1, 0), width=1920, height=1080)


@dataclass(frozen=True)
class Hop:
    """Medians of one kind of call, milliseconds beyond the kernels, and their ratios to a client of one worker."""

    call: str
    way: str
    median_ms: float
    ratio: float


@dataclass(frozen=True)
class Loss:
    """The calls during the loss of a worker; `moved` of the scenes `there` were stored anew elsewhere."""

    event: str
    way: str
    calls: int
    failed: int
    there: int
    moved: int
    slowest_ms: float


def main() -> None:
    """Measures and prints the tables."""
    if os.environ.get(_RING_VARIABLE) != "true":
        os.execve(
            sys.executable, [sys.executable, "-m", "tests.benchmarks.pool"], {**os.environ, _RING_VARIABLE: "true"}
        )
    with fleet(3) as workers:
        hops = _hops(workers)
    losses = [
        _loss(event, way, number)
        for event, number in (("killed", signal.SIGKILL), ("stopped", signal.SIGTERM))
        for way in ("pool", "gRPC ring hash")
    ]
    for row in (*hops, *losses):
        print(row)
    write([*hops, *losses], RESULTS)
    print(f"wrote {RESULTS}")


def _hops(workers: Sequence[WorkerProcess]) -> list[Hop]:
    rows = []
    with (
        Client(workers[0].target) as one,
        Client(f"dns:///127.0.0.1:{workers[0].port}") as pool_of_one,
        Client(targets(workers)) as pool,
        _ring(targets(workers)) as ring,
    ):
        ways = {"one worker": one, "pool of one": pool_of_one, "pool": pool, "gRPC ring hash": ring}
        for name, camera, runs in (("32 x 24", CAMERA, 600), ("1920 x 1080", _FULL_HD, 72)):
            calls = {way: _call(client, camera) for way, client in ways.items()}
            times: dict[str, list[float]] = {way: [] for way in ways}
            for run in range(runs + 5):
                for way, call in calls.items():
                    begun = time.perf_counter()
                    inside = call()
                    if run >= 5:
                        times[way].append((time.perf_counter() - begun) * 1e3 - inside)
            medians = {way: statistics.median(found) for way, found in times.items()}
            rows += [Hop(name, way, median, median / medians["one worker"]) for way, median in medians.items()]
    return rows


def _call(client: Client, camera: Camera) -> Callable[[], float]:
    handles = cycle([client.put(cloud(seed)) for seed in range(_SCENES)])
    return lambda: client.render(next(handles), camera, **SETTINGS).timings.kernel_ms


def _loss(event: str, way: str, number: signal.Signals) -> Loss:
    with fleet(3) as workers, (_ring if way != "pool" else Client)(targets(workers)) as client:
        handles = [client.put(cloud(seed)) for seed in range(_SCENES)]
        pictures = [client.render(handle, CAMERA, **SETTINGS).color for handle in handles]
        stored = [puts(worker) for worker in workers]
        victim = max(range(3), key=lambda index: stored[index])
        others = [index for index in range(3) if index != victim]

        def right(handle: SceneHandle, picture: Any) -> Callable[[], None]:
            def call() -> None:
                assert np.array_equal(client.render(handle, CAMERA, **SETTINGS).color, picture)

            return call

        with Load([right(*both) for both in zip(handles, pictures, strict=True)], _RATE) as load:
            load.wait_for_progress(80)
            workers[victim].signal(number)
            workers[victim].wait()
            time.sleep(4)
        for handle in handles:
            client.render(handle, CAMERA, **SETTINGS)
        moved = sum(puts(workers[index]) - stored[index] for index in others)
        calls = sum(load.outcomes.values())
        slowest = load.latencies.quantile(1.0) * 1e3
        print(event, way, load)
        return Loss(event, way, calls, load.failed, int(stored[victim]), int(moved), slowest)


@contextmanager
def _ring(addresses: Sequence[str]) -> Iterator[Client]:
    """A client of one channel, in which gRPC chooses by the header that says which calls belong together."""
    policy = {"ring_hash_experimental": {"minRingSize": 1024, "requestHashHeader": AFFINITY_METADATA}}
    config = {"loadBalancingConfig": [policy], "healthCheckConfig": {"serviceName": ""}}
    original = connection.open_channel

    def over_all(*_: Any) -> grpc.Channel:
        options = (("grpc.service_config", json.dumps(config)), ("grpc.enable_http_proxy", 0))
        return grpc.insecure_channel("ipv4:" + ",".join(addresses), options=options)

    connection.open_channel = over_all
    try:
        client = Client(addresses[0])
    finally:
        connection.open_channel = original
    with client:
        yield client


if __name__ == "__main__":
    main()
