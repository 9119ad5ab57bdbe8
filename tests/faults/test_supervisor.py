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
from support.workers.client_load import CAMERA, cloud, load
from support.workers.faults import FOLDER, POISON, SERVE, faulty_worker
from support.workers.spares import wait_for_spare
from support.workers.worker import LUMIGRAD, WorkerProcess, worker

RECOVERY_SECONDS = 3.0


def kill_worker(process: WorkerProcess, number: int = signal.SIGKILL) -> int:
    pid = process.worker_pid
    os.kill(pid, number)
    return pid


def wait_for_end(pid: int, seconds: float = 10.0) -> None:
    until = time.monotonic() + seconds
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
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


@pytest.mark.alone
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_killed_worker_is_replaced_in_time_on_the_same_ports(number: signal.Signals) -> None:
    with worker("--device", "cpu", supervised=True) as process, Client(process.target) as client:
        client.render(cloud(), CAMERA)
        wait_for_spare(process)
        started = time.monotonic()
        kill_worker(process, number)
        client.render(cloud(), CAMERA)
        assert time.monotonic() - started < RECOVERY_SECONDS
        assert process.process.stdout is not None
        again = f"listening on {process.target} (metrics {process.metrics_port})\n"
        assert process.process.stdout.readline() == again
        reason = "killed" if number == signal.SIGKILL else "crash"
        assert process.metric("lumigrad_worker_last_exit", reason=reason) == 1
        process.wait_for_log(f"worker ended device=cpu code={-number} reason={reason}")
    assert ("Fatal Python error: Segmentation fault" in process.log) == (number == signal.SIGSEGV)


def test_a_worker_that_is_asked_to_end_is_replaced_and_no_crash() -> None:
    with worker("--device", "cpu", "--max-crashes", "1", supervised=True) as process, load(process.target) as calls:
        calls.wait_for_progress()
        kill_worker(process, signal.SIGTERM)
        process.wait_for_log("code=0 reason=stopped", seconds=20)
        calls.wait_for_progress()
        assert calls.failures == []


def test_a_worker_per_device_and_each_of_its_own() -> None:
    with worker("--device", "cpu,cpu", supervised=True) as process:
        found = [re.findall(rf"worker started .*{name}=(\d+)", process.log) for name in ("port", "pid")]
        ports, pids = ([int(number) for number in numbers] for numbers in found)
        assert len(set(ports)) == 2
        # A busy machine takes its time to load another worker.
        patient = {"timeout_s": 240, "retry_s": 120}
        with Client(f"127.0.0.1:{ports[0]}", **patient) as first, Client(f"127.0.0.1:{ports[1]}", **patient) as second:
            expected = second.render(cloud(), CAMERA).color
            os.kill(pids[0], signal.SIGKILL)
            assert np.array_equal(second.render(cloud(), CAMERA).color, expected)
            process.wait_for_log("restarts=1")
            assert np.array_equal(second.render(cloud(), CAMERA).color, expected)
            assert np.array_equal(first.render(cloud(), CAMERA).color, expected)
        assert psutil.pid_exists(pids[1])


def serve(*options: str, environment: dict[str, str] | None = None, command: tuple[str, ...] = (LUMIGRAD, "serve")):
    arguments = [*command, "--device", "cpu", "--port", "0", "--metrics-port", "0", *options]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=90, check=False, env=environment)


def test_a_crash_loop_ends_with_a_code_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "crash at start").touch()
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), FOLDER: str(tmp_path)}
    result = serve("--max-crashes", "3", environment=environment, command=SERVE)
    assert result.returncode == 5
    assert result.stdout == ""
    assert result.stderr.count("worker started") == 3
    assert result.stderr.count("code=70 reason=crash") == 3
    assert "not restarting the worker: 3 crashes within 60 s (--max-crashes, --crash-seconds)" in result.stderr


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


def test_no_worker_and_no_spare_outlive_their_supervisor() -> None:
    process = WorkerProcess("--device", "cpu", supervised=True)
    wait_for_spare(process)
    children = psutil.Process(process.process.pid).children()
    assert len(children) == 2
    process.signal(signal.SIGKILL)
    process.process.wait(10)
    for child in children:
        wait_for_end(child.pid)
    with worker("--device", "cpu", port=process.port, metrics_port=process.metrics_port) as again:
        assert again.port == process.port


def test_a_supervisor_in_the_way_of_nobody_keeps_its_port_from_others() -> None:
    with worker("--device", "cpu", supervised=True) as process:
        result = serve("--port", str(process.port))
        assert result.returncode == 2
        assert "is another process using it?" in result.stderr


def test_a_stop_while_workers_start_is_heard() -> None:
    arguments = [LUMIGRAD, "serve", "--device", "cpu", "--port", "0", "--metrics-port", "0", "--lame-duck-seconds", "0"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "worker started" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_sigquit_writes_the_stacks_down_and_ends_nothing() -> None:
    with worker("--device", "cpu", supervised=True) as process, Client(process.target) as client:
        os.kill(process.worker_pid, signal.SIGQUIT)
        process.wait_for_log("in _watch")
        client.render(cloud(), CAMERA)
        assert process.metric("lumigrad_worker_restarts_total") == 0


def test_the_supervisor_is_light() -> None:
    script = "import sys; import lumigrad.server.process.command; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=60, check=False).returncode == 0


def test_a_call_that_crashes_its_worker_does_not_take_others_along(tmp_path: Path) -> None:
    with faulty_worker(tmp_path) as (process, faults), Client(process.target, timeout_s=240, retry_s=120) as client:
        expected = client.render(cloud(), CAMERA).color
        faults.arm("crash")
        assert np.array_equal(client.render(cloud(), CAMERA).color, expected)
        assert process.metric("lumigrad_worker_last_exit", reason="crash") == 1


def test_a_call_that_crashes_every_worker_is_given_up_before_the_workers_are(tmp_path: Path) -> None:
    with (
        faulty_worker(tmp_path) as (process, faults),
        Client(process.target, timeout_s=240, retry_s=120) as poisoner,
        load(process.target) as other,
    ):
        expected = poisoner.render(cloud(), CAMERA, outputs=[POISON])
        other.wait_for_progress()
        faults.arm("poison")
        with pytest.raises(Unavailable, match=r"was lost during the call .* its log may show the reason") as error:
            poisoner.render(cloud(), CAMERA, outputs=[POISON])
        assert error.value.was_begun
        other.wait_for_progress()
        # One that is just dying may still take a call.
        assert process.log.count("reason=crash") in (2, 3)
        assert "not restarting" not in process.log
        assert faults.strike("poison")
        assert np.array_equal(poisoner.render(cloud(), CAMERA, outputs=[POISON]).hits, expected.hits)
        assert other.failures == []
