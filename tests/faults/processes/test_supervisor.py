"""A supervisor keeps workers running: after crashes, on the same ports, within a budget, and not beyond its own end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from lumigrad.client import Client, Unavailable
from support.ports import reserved_port
from support.workers.client_load import CAMERA, cloud, load
from support.workers.faults import POISON, faulty_worker
from support.workers.forks import FAULTS, ForkedProcess, lumigrad
from support.workers.slow_render import wait_until
from support.workers.worker import WorkerProcess, worker, worker_fixture

RECOVERY_SECONDS = 3.0


def kill_worker(process: WorkerProcess, number: int = signal.SIGKILL) -> int:
    pid = process.worker_pid
    os.kill(pid, number)
    return pid


def fork_server(process: WorkerProcess) -> psutil.Process:
    """The process from which the supervisor's one worker was forked."""
    (found,) = [child for child in psutil.Process(process.process.pid).children() if child.pid != process.worker_pid]
    return found


# A supervisor whose worker no test ends.
calm = worker_fixture(supervised=True)


def test_processes_are_told_apart_by_their_names(calm: WorkerProcess) -> None:
    pids = calm.process.pid, fork_server(calm).pid, calm.worker_pid
    names = [Path(f"/proc/{pid}/comm").read_text(encoding="ascii").strip() for pid in pids]
    assert names == ["lumigrad-super", "lumigrad-fork", "lumigrad-worker"]


def has_ended(pid: int) -> bool:
    """Whether a process has released its ports: a process is a zombie even if only its first thread has ended."""
    try:
        process = psutil.Process(pid)
        return process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1
    except psutil.NoSuchProcess:
        return True


def wait_for_end(pid: int, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not has_ended(pid):
        assert time.monotonic() < until, f"process {pid} goes on"
        time.sleep(0.02)


def test_workers_killed_under_load_cost_no_call() -> None:
    with worker("--device", "cpu", supervised=True) as process, load(process.target) as calls:
        for _ in range(3):
            calls.wait_for_progress()
            kill_worker(process)
        calls.wait_for_progress()
        assert calls.failures == []
        assert process.metric("lumigrad_worker_restarts_total") == 3
        assert process.metric("lumigrad_worker_last_exit", reason="killed") == 1
        assert process.metric("lumigrad_worker_last_exit", reason="crash") == 0
        assert process.metric("lumigrad_up") == 1


def test_a_killed_worker_is_replaced_in_time_on_the_same_ports() -> None:
    started = time.monotonic()
    with worker("--device", "cpu", supervised=True) as process, Client(process.target, retry_s=60) as client:
        expected = client.render(cloud(), CAMERA).color
        first = time.monotonic() - started
        took = []
        # The signals come one right after another.
        for number, reason in ((signal.SIGKILL, "killed"), (signal.SIGSEGV, "crash"), (signal.SIGKILL, "killed")):
            assert ("Fatal Python error: Segmentation fault" in process.log) == (process.log.count("reason=crash") > 0)
            started = time.monotonic()
            kill_worker(process, number)
            assert np.array_equal(client.render(cloud(), CAMERA).color, expected)
            took.append(time.monotonic() - started)
            assert process.process.stdout is not None
            again = f"listening on {process.target} (metrics {process.metrics_port})\n"
            assert process.process.stdout.readline() == again
            assert process.metric("lumigrad_worker_last_exit", reason=reason) == 1
            process.wait_for_log(f"worker ended device=cpu code={-number} reason={reason}")
    print(f"restarts took {took} s, the first start {first:.2f} s")
    if min(took) >= max(RECOVERY_SECONDS, first):
        # The machine may have become slower since the first start.
        started = time.monotonic()
        with worker("--device", "cpu", supervised=True) as process, Client(process.target, retry_s=60) as client:
            client.render(cloud(), CAMERA)
            assert min(took) < time.monotonic() - started


def test_a_fork_server_that_ends_is_replaced_without_harm_to_the_worker() -> None:
    with worker("--device", "cpu", supervised=True) as process, load(process.target) as calls:
        fork_server(process).kill()
        process.wait_for_log("the fork server ended code=-9 loaded=True")
        calls.wait_for_progress()
        assert process.metric("lumigrad_worker_restarts_total") == 0
        kill_worker(process)
        calls.wait_for_progress()
        assert process.metric("lumigrad_worker_restarts_total") == 1
        assert calls.failures == []


def test_a_worker_that_is_asked_to_end_is_replaced_and_no_crash() -> None:
    with worker("--device", "cpu", "--max-crashes", "1", supervised=True) as process, load(process.target) as calls:
        calls.wait_for_progress()
        kill_worker(process, signal.SIGTERM)
        process.wait_for_log("code=0 reason=stopped")
        calls.wait_for_progress()
        assert calls.failures == []


def test_a_worker_per_device_and_each_of_its_own() -> None:
    with worker("--device", "cpu,cpu", supervised=True) as process:
        found = [re.findall(rf"worker started .*{name}=(\d+)", process.log) for name in ("port", "pid")]
        ports, pids = ([int(number) for number in numbers] for numbers in found)
        assert len(set(ports)) == 2
        # Loading another worker takes long on a busy machine.
        patient = {"timeout_s": 240, "retry_s": 120}
        with Client(f"127.0.0.1:{ports[0]}", **patient) as first, Client(f"127.0.0.1:{ports[1]}", **patient) as second:
            expected = second.render(cloud(), CAMERA).color
            os.kill(pids[0], signal.SIGKILL)
            assert np.array_equal(second.render(cloud(), CAMERA).color, expected)
            process.wait_for_log("restarts=1")
            assert np.array_equal(second.render(cloud(), CAMERA).color, expected)
            assert np.array_equal(first.render(cloud(), CAMERA).color, expected)
        assert psutil.pid_exists(pids[1])


def serve(*options: str) -> subprocess.CompletedProcess[str]:
    return lumigrad("serve", "--device", "cpu", "--port", "0", "--metrics-port", "0", *options)


@pytest.mark.parametrize(
    ("fault", "line", "what"),
    [
        ("crash at start", "worker ended device=cpu code=70 reason=crash", "the worker"),
        ("crash while loading", "the fork server ended code=70 loaded=False", "the fork server"),
    ],
)
def test_a_crash_loop_ends_with_a_code_of_its_own(
    fault: str, line: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / fault).touch()
    monkeypatch.setenv(FAULTS, str(tmp_path))
    result = serve("--max-crashes", "3", "--crash-seconds", "600")
    assert result.returncode == 5
    assert result.stdout == ""
    assert result.stderr.count(line) == 3
    given_up = f"not restarting the worker: {what} crashed 3 times within 600 s (--max-crashes, --crash-seconds)"
    assert given_up in result.stderr


@pytest.mark.parametrize("device", ["cuda:99", "cpu,tpu"])
def test_a_configuration_that_cannot_work_is_not_tried_again(device: str) -> None:
    result = serve("--device", device)
    assert result.returncode == 2
    assert result.stderr.count("worker started") == len(device.split(","))
    assert "reason=configuration" in result.stderr


@pytest.mark.parametrize("device", ["cpu,", "all,cpu"])
def test_a_list_of_devices_has_no_gaps(device: str) -> None:
    result = serve("--device", device)
    assert result.returncode == 2
    assert f"--device: expected one device, several with commas between, or all, got '{device}'" in result.stderr


def test_no_process_outlives_its_supervisor() -> None:
    with reserved_port() as port, reserved_port() as metrics_port:
        process = WorkerProcess("--device", "cpu", port=port, metrics_port=metrics_port, supervised=True)
        children = psutil.Process(process.process.pid).children()
        assert len(children) == 2
        process.signal(signal.SIGKILL)
        process.wait()
        for child in children:
            wait_for_end(child.pid)
        with worker("--device", "cpu", port=port, metrics_port=metrics_port) as again:
            assert again.port == port


def test_a_supervisor_in_the_way_of_nobody_keeps_its_port_from_others(calm: WorkerProcess) -> None:
    result = serve("--port", str(calm.port))
    assert result.returncode == 2
    assert "is another process using it?" in result.stderr


@pytest.mark.parametrize("has_loaded", [False, True])
def test_a_stop_before_a_worker_serves_is_obeyed(has_loaded: bool) -> None:
    endless = (
        "import time",
        "from lumigrad.server.process import fork_server",
        "fork_server.main = lambda: time.sleep(600)",
    )
    arguments = ["serve", "--device", "cpu", "--port", "0", "--metrics-port", "0", "--lame-duck-seconds", "0"]
    process = ForkedProcess(arguments, before=() if has_loaded else endless)
    if has_loaded:
        starting, _, started = (process.stderr.readline() for _ in range(3))
        assert "INFO starting: " in starting
        assert "worker started" in started
    else:
        wait_until(lambda: psutil.Process(process.pid).children(), "the fork server")
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=150)
    assert process.returncode == 0
    assert has_loaded or "worker started" not in log


def test_sigquit_writes_the_stacks_down_and_ends_nothing(calm: WorkerProcess) -> None:
    os.kill(calm.worker_pid, signal.SIGQUIT)
    calm.wait_for_log("in _watch")
    with Client(calm.target) as client:
        client.render(cloud(), CAMERA)
    assert calm.metric("lumigrad_worker_restarts_total") == 0


def test_the_supervisor_is_light() -> None:
    script = "import sys; import lumigrad.server.process.command; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=250, check=False).returncode == 0


def test_what_the_fork_server_loads_uses_no_device_and_starts_no_thread() -> None:
    # Neither a context of CUDA nor a thread survives a fork.
    script = """
import os, threading, lumigrad.server.process.main, torch
def target(number):
    try:
        return os.readlink(f"/proc/self/fd/{number}")
    except OSError:
        return ""
devices = [name for name in map(target, os.listdir("/proc/self/fd")) if "nvidia" in name]
assert not devices and not torch.cuda.is_initialized(), devices
assert threading.active_count() == 1, threading.enumerate()
"""
    assert subprocess.run([sys.executable, "-c", script], timeout=250, check=False).returncode == 0


def test_a_call_that_crashes_its_worker_does_not_take_others_along(tmp_path: Path) -> None:
    with faulty_worker(tmp_path) as (process, faults), Client(process.target, timeout_s=240, retry_s=120) as client:
        expected = client.render(cloud(), CAMERA).color
        faults.arm("crash")
        assert np.array_equal(client.render(cloud(), CAMERA).color, expected)
        assert process.metric("lumigrad_worker_last_exit", reason="crash") == 1


def test_a_call_that_crashes_every_worker_is_given_up_before_the_workers_are(tmp_path: Path) -> None:
    with faulty_worker(tmp_path) as (process, faults), Client(process.target, timeout_s=240, retry_s=120) as poisoner:
        expected = poisoner.render(cloud(), CAMERA, outputs=[POISON])
        faults.arm("poison")
        with pytest.raises(Unavailable, match=r"was lost during the call .* its log may show the reason") as error:
            poisoner.render(cloud(), CAMERA, outputs=[POISON])
        assert error.value.was_begun
        process.wait_for_log("reason=crash", count=2)
        # Other calls are served meanwhile, but one that meets each of the crashes is given up with this one.
        with load(process.target) as other:
            other.wait_for_progress()
        assert other.failures == []
        # A dying worker may still accept a call.
        assert process.log.count("reason=crash") in (2, 3)
        assert "not restarting" not in process.log
        assert faults.strike("poison")
        assert np.array_equal(poisoner.render(cloud(), CAMERA, outputs=[POISON]).hits, expected.hits)
