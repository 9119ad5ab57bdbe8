"""The wall clock of a worker's or client's machine is set during work: no time limit expires early."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import grpc
import pytest

from support.calls.raw_calls import RawClient, color_gradient, failure, opencv_camera, spec_of, sphere_cloud
from support.fault_proxy import FaultProxy
from support.wall_clock import WallClock
from support.workers.slow_render import SlowRender, wait_for, wait_until
from support.workers.worker import WorkerProcess, worker

HOURS = 3600


@pytest.fixture
def clock(tmp_path: Path) -> WallClock:
    return WallClock(tmp_path)


def test_the_clock_jumps_where_these_tests_say_so(clock: WallClock) -> None:
    clock.jump(5 * HOURS)
    script = "import time; print(time.time(), time.monotonic())"
    shown = subprocess.run([sys.executable, "-c", script], env=clock.environment, capture_output=True, check=True)
    wall, monotonic = map(float, shown.stdout.split())
    assert wall - time.time() == pytest.approx(5 * HOURS, abs=60)
    assert monotonic == pytest.approx(time.monotonic(), abs=60)


def test_a_worker_whose_clock_is_set_goes_on(clock: WallClock) -> None:
    with worker("--device", "cpu", supervised=True, environment=clock.environment) as process:
        client = RawClient(process.target)
        scene_id = client.put(sphere_cloud(20)).scene.scene_id
        slow = SlowRender(client)
        # First forwards, then backwards.
        for hours in (3, -3):
            assert_goes_on(process, client, slow, scene_id, lambda hours=hours: clock.jump(hours * HOURS))
        client.close()


def assert_goes_on(
    process: WorkerProcess, client: RawClient, slow: SlowRender, scene_id: str, jump: Callable[[], None]
) -> None:
    spec = spec_of(opencv_camera(64, 48), scene_id=scene_id)
    before = client.render(spec, retain=True)
    wait_for(process, "lumigrad_calls_in_progress", 0)
    ended = process.metric("lumigrad_calls_total")

    def have_begun() -> bool:
        # On a slow machine the first may be over before the second begins.
        in_progress = process.metric("lumigrad_calls_in_progress")
        return in_progress + process.metric("lumigrad_calls_total") >= ended + 2

    calls = [slow.start(views=9, timeout=120), slow.start(views=9, timeout=120)]
    wait_until(have_begun, "two calls")
    jump()
    for call in calls:
        assert sum(frame.data.nbytes for frame in call) == 9 * 256 * 256 * 4
    # Longer than the pauses of housekeeping and of the watchdog.
    time.sleep(1.5)
    assert process.health() == 1
    assert client.render(spec).arrays["color"].tobytes() == before.arrays["color"].tobytes()
    client.backward({"color": color_gradient(1, 48, 64, 3)}, context_id=before.header.context_id)
    started = time.monotonic()
    assert failure(lambda: list(slow.start(timeout=0.5))).code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert time.monotonic() - started < 60
    assert process.metric("lumigrad_worker_restarts_total") == 0

    def has_jumped() -> bool:
        shown = datetime.fromisoformat(re.findall(r"^(\S+) ", process.log, re.M)[-1])
        return abs((shown - datetime.now(timezone.utc)).total_seconds()) > 2 * HOURS

    wait_until(has_jumped, "a line of the log after the jump")


CALLS = """
import sys
from lumigrad.client import Client, DeadlineExceeded
from support.workers.client_load import CAMERA, cloud

client = Client(sys.argv[1])
for line in sys.stdin:
    try:
        client.render(cloud(), CAMERA, timeout_s=float(line))
        print("done", flush=True)
    except DeadlineExceeded:
        print("overdue", flush=True)
"""


@pytest.mark.parametrize("hours", [3, -3])
def test_a_client_whose_clock_is_set_waits_as_long_as_it_was_told_to(clock: WallClock, hours: int) -> None:
    tests = Path(__file__).parents[2]
    with worker("--device", "cpu") as process, FaultProxy(process.target) as proxy:
        command = [sys.executable, "-c", CALLS, proxy.target]
        pipe = subprocess.PIPE
        with subprocess.Popen(
            command, cwd=tests, env=clock.environment, stdin=pipe, stdout=pipe, text=True, bufsize=1
        ) as child:
            assert child.stdin is not None and child.stdout is not None
            child.stdin.write("60\n")
            assert child.stdout.readline() == "done\n"
            for seconds, end in ((60, "done"), (2, "overdue")):
                proxy.up.frozen = True
                started = time.monotonic()
                child.stdin.write(f"{seconds}\n")
                time.sleep(0.5)
                clock.jump(hours * HOURS if end == "done" else 0)
                if end == "done":
                    proxy.heal()
                assert child.stdout.readline() == f"{end}\n"
                assert (time.monotonic() - started > 1.9) or end == "done"
                assert time.monotonic() - started < 60
            child.stdin.close()
