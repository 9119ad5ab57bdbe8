"""Tenants who compete for one device each get their share of the time, whatever priority others ask for."""

from __future__ import annotations

import threading
import time

import grpc
import numpy as np

from support.calls.raw_calls import failure, opencv_camera, spec_of, sphere_cloud
from support.workers.slow_render import SlowRender, wait_for, wait_for_work
from support.workers.tenant import tenant_client
from support.workers.worker import WorkerProcess, worker_fixture

ALICE, BOB = (f"{name}-0123456789abcdef" for name in ("alice", "bob"))
QUEUE = 16
process = worker_fixture("--queue-size", str(QUEUE), "--batch-views", "1", tokens={"alice": ALICE, "bob": BOB})


class Asking:
    """A tenant who renders without pause, several calls at a time; adds up the device time of the replies."""

    def __init__(
        self, process: WorkerProcess, token: str, views: int, calls: int = 4, priority: str = "normal"
    ) -> None:
        self.device_ms = 0.0
        self.done = 0
        self.goes_on = True
        self._channel = process.channel()
        self._client = tenant_client(self._channel, token)
        self._metadata = (("lumigrad-priority", priority),)
        scene_id = self._client.put(sphere_cloud(5000, radius=1.0, seed=99)).scene.scene_id
        self._spec = spec_of(*[opencv_camera(64, 64)] * views, scene_id=scene_id, outputs=["alpha"], gamma=1.0)
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run) for _ in range(calls)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        while self.goes_on:
            reply = self._client.render(self._spec, metadata=self._metadata)
            with self._lock:
                self.done += 1
                self.device_ms += sum(
                    stage.milliseconds for stage in reply.timings.stages if stage.name.startswith("kernel.")
                )

    def wait_for(self, done: int) -> None:
        until = time.monotonic() + 150
        while self.done < done:
            assert time.monotonic() < until, "the calls do not get on"
            time.sleep(0.01)

    def stop(self) -> None:
        self.goes_on = False
        for thread in self._threads:
            thread.join(60)
        self._channel.close()


def assert_shared(one: Asking, other: Asking, calls: int, most: float) -> None:
    """Fails unless neither tenant gets more than `most` times the other's time in one of eight tries.

    A try lasts for `calls` calls of `one`. Callers on a busy machine may be too late to claim their share.
    """
    ratios: list[float] = []
    try:
        one.wait_for(2)
        while len(ratios) < 8 and not any(1 / most < ratio < most for ratio in ratios):
            before = one.device_ms, other.device_ms
            one.wait_for(one.done + calls)
            ratios.append((one.device_ms - before[0]) / max(other.device_ms - before[1], 1e-3))
    finally:
        one.stop()
        other.stop()
    assert any(1 / most < ratio < most for ratio in ratios), ratios


def test_a_tenant_with_dear_calls_does_not_starve_one_with_cheap_ones(process: WorkerProcess) -> None:
    # The ratio would be 24 if calls took turns.
    assert_shared(Asking(process, ALICE, views=24), Asking(process, BOB, views=1, calls=7), calls=8, most=3)


def test_urgent_calls_of_a_tenant_go_first(process: WorkerProcess) -> None:
    """Interactive calls precede earlier ones, and batch calls come last."""
    names = ("interactive", "normal", "batch")
    stages: dict[str, dict[str, float]] = {}
    with process.channel() as channel:
        alice = tenant_client(channel, ALICE)
        slow = SlowRender(alice)

        def call(priority: str) -> None:
            reply = alice.render(slow.request(2).message.spec, metadata=(("lumigrad-priority", priority),))
            stages[priority] = {stage.name: stage.milliseconds for stage in reply.timings.stages}

        running = slow.start()
        wait_for_work(process)
        threads = [threading.Thread(target=call, args=(priority,)) for priority in reversed(names)]
        for depth, thread in enumerate(threads, 1):
            thread.start()
            wait_for(process, "lumigrad_queue_depth", depth)
        running.cancel()
        for thread in threads:
            thread.join(150)
    # Replies and lines of the log may be late. A call that was there earlier and began later waited for longer, by at
    # least the time that the other call took.
    waits = [stages[name]["queue"] for name in names]
    kernels = [sum(ms for stage, ms in stages[name].items() if stage.startswith("kernel.")) for name in names]
    for first in range(2):
        assert waits[first + 1] > waits[first] + kernels[first], (waits, kernels)


def test_interactive_calls_take_no_time_from_other_tenants(process: WorkerProcess) -> None:
    urgent = Asking(process, ALICE, views=8, priority="interactive")
    patient = Asking(process, BOB, views=8, priority="batch")
    # The ratio would be 4 by priority, and infinite for the first second.
    assert_shared(urgent, patient, calls=12, most=2)


def test_a_tenant_who_fills_the_queue_leaves_places_for_others(process: WorkerProcess) -> None:
    with process.channel() as channel:
        alice, bob = tenant_client(channel, ALICE), tenant_client(channel, BOB)
        slow = SlowRender(alice)
        running = slow.start()
        wait_for_work(process)
        waiting = [slow.start() for _ in range(QUEUE // 2)]
        wait_for(process, "lumigrad_queue_depth", QUEUE // 2)
        error = failure(lambda: list(slow.start()))
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert error.details() == (
            f"you have {QUEUE // 2} of {QUEUE // 2} places of the queue (--queue-size), and asked for 1 more; "
            "try again later"
        )
        expected = sphere_cloud(3)
        done: list[np.ndarray] = []
        thread = threading.Thread(target=lambda: done.append(bob.render(spec_of(), cloud=expected).arrays["color"]))
        thread.start()
        wait_for(process, "lumigrad_queue_depth", QUEUE // 2 + 1)
        running.cancel()
        # Bob goes before Alice's earlier calls, since she has had the device.
        thread.join(150)
        assert len(done) == 1 and waiting[-1].is_active()
        for call in waiting:
            call.cancel()
        wait_for(process, "lumigrad_calls_in_progress", 0)
