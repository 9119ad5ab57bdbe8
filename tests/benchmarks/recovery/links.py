"""Lost connections, and other things that a client may lose while its worker lives on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from lumigrad.client import Client, ResourceExhausted
from support.calls import verbs
from support.calls.raw_calls import RawClient
from support.fault_proxy import End, FaultProxy
from support.workers.client_load import renders
from support.workers.slow_render import SlowRender, wait_for
from support.workers.worker import worker
from tests.benchmarks.recovery.case import Case, Incident

_QUEUE = 2


@contextmanager
def _broken(end: End) -> Iterator[Incident]:
    with (
        worker("--device", "cpu") as process,
        FaultProxy(process.target) as proxy,
        Client(proxy.target) as client,
    ):
        yield Incident(proxy.heal, lambda: proxy.end_all(end), renders(client))


@contextmanager
def _cut() -> Iterator[Incident]:
    """The connection breaks in the middle of a reply."""
    with (
        worker("--device", "cpu") as process,
        FaultProxy(process.target) as proxy,
        Client(proxy.target, lane="stream") as client,
    ):
        yield Incident(proxy.heal, lambda: proxy.down.cut(10_000), renders(client))


@contextmanager
def _lost_context() -> Iterator[Incident]:
    """Another forward state takes the place of the one that a backward pass needs."""
    with worker("--device", "cpu", "--context-mib", "1") as process, Client(process.target) as client:
        scene = client.put(verbs.gaussians())
        gradient = np.ones((verbs.CAMERA.height, verbs.CAMERA.width, 3), np.float32)
        frame = [client.render(scene, verbs.CAMERA, retain=True)]
        expected = frame[0].backward(gradient).means

        def ready() -> None:
            del frame[1:]
            frame[0] = client.render(scene, verbs.CAMERA, retain=True)

        def prepare() -> None:
            lost = process.metric("lumigrad_evictions_total", store="contexts", reason="room")
            while process.metric("lumigrad_evictions_total", store="contexts", reason="room") == lost:
                frame.append(client.render(scene, verbs.CAMERA, retain=True))

        def call() -> None:
            assert np.array_equal(frame[0].backward(gradient).means, expected), "wrong gradients"

        yield Incident(ready, lambda: None, call, prepare)


@contextmanager
def _lost_lane() -> Iterator[Incident]:
    """The worker no longer knows the lane that the client's calls name."""
    with worker("--device", "cpu") as process, Client(process.target, lane="shared") as client:
        scene = client.put(verbs.gaussians())
        expected = client.render(scene, verbs.CAMERA).color
        found = [0.0]

        def lost() -> float:
            return process.metric("lumigrad_lane_fallbacks_total", reason="lost")

        def prepare() -> None:
            found[0] = lost()

        def strike() -> None:
            lane = client._workers.members()[0].connection.lanes._lane
            assert lane is not None
            lane._token = bytes(16)

        def call() -> None:
            assert np.array_equal(client.render(scene, verbs.CAMERA).color, expected), "a wrong picture"

        yield Incident(lambda: None, strike, call, prepare, lambda: lost() > found[0])


@contextmanager
def _full() -> Iterator[Incident]:
    """The queue is full of calls, which are then cancelled."""
    with (
        worker("--device", "cpu", "--queue-size", str(_QUEUE)) as process,
        Client(process.target) as client,
        Client(process.target, retry_s=0.0) as impatient,
    ):
        raw = RawClient(process.target)
        slow, call, call_once = SlowRender(raw), renders(client), renders(impatient)

        def ready() -> None:
            wait_for(process, "lumigrad_calls_in_progress", 0)

        def prepare() -> None:
            slow.start()
            wait_for(process, "lumigrad_calls_in_progress", 1)
            wait_for(process, "lumigrad_queue_depth", 0)
            for _ in range(_QUEUE):
                slow.start()
            wait_for(process, "lumigrad_queue_depth", _QUEUE)
            try:
                call_once()
            except ResourceExhausted:
                return
            raise AssertionError("the queue is not full")

        yield Incident(ready, slow.cancel, call, prepare)
        raw.close()


CASES = (
    Case("connection reset", lambda: _broken(End.RESET)),
    Case("connection cut in the middle of a reply", _cut),
    Case("connection fallen silent", lambda: _broken(End.SILENCE)),
    Case("forward state evicted", _lost_context),
    Case("lane of shared memory lost", _lost_lane),
    Case("queue full, until its calls are given up", _full),
)
