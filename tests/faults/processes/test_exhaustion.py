"""A system without more threads, descriptors or disk space: the worker serves what it can, and recovers afterwards."""

from __future__ import annotations

import re
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest

from lumigrad.client import Client, DeadlineExceeded, Unavailable
from support.calls.raw_calls import RawClient, opencv_camera, spec_of, sphere_cloud
from support.workers.client_load import CAMERA, cloud
from support.workers.faults import faulty_worker
from support.workers.forks import ForkedProcess
from support.workers.worker import WorkerProcess, worker


@contextmanager
def descriptors(pid: int, more: int) -> Iterator[None]:
    """Let a process open only `more` further files."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (psutil.Process(pid).num_fds() + more, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


@contextmanager
def idle(process: WorkerProcess, count: int) -> Iterator[None]:
    """Connections that send nothing."""
    connections = [socket.create_connection(("127.0.0.1", process.port), timeout=60) for _ in range(count)]
    try:
        yield
    finally:
        for connection in connections:
            connection.close()


def render(client: RawClient, seconds: float = 60) -> object:
    return client.render(spec_of(opencv_camera(32, 32)), cloud=sphere_cloud(10), timeout=seconds)


def test_without_descriptors_those_who_are_connected_are_served_and_the_others_later() -> None:
    with (
        worker("--device", "cpu") as process,
        Client(process.target) as known,
        Client(f"localhost:{process.port}", timeout_s=120, retry_s=120) as new,
    ):
        expected = known.render(cloud(), CAMERA).color
        pid = process.process.pid
        before = psutil.Process(pid).num_fds()
        silent = socket.create_connection(("127.0.0.1", process.port), timeout=60)
        with descriptors(pid, 50):
            with idle(process, 500):
                for _ in range(20):
                    assert np.array_equal(known.render(cloud(), CAMERA).color, expected)
                with pytest.raises((Unavailable, DeadlineExceeded)):
                    new.render(cloud(), CAMERA, timeout_s=1)
            assert np.array_equal(new.render(cloud(), CAMERA).color, expected)
        until = time.monotonic() + 60
        while psutil.Process(pid).num_fds() > before + 2:
            assert time.monotonic() < until, "connections that have gone are still open"
            time.sleep(0.1)
        assert " ERROR " not in process.log
        with silent:
            while silent.recv(1 << 12):
                "until it is closed, for it says nothing"


def test_without_threads_every_call_is_answered(tmp_path: Path) -> None:
    with faulty_worker(tmp_path) as (process, faults):
        faults.arm("threads")
        clients = [RawClient(process.target) for _ in range(30)]
        failures: list[Exception] = []

        def ask(client: RawClient) -> None:
            try:
                render(client)
            except Exception as error:
                failures.append(error)

        callers = [threading.Thread(target=ask, args=(client,)) for client in clients]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        assert not failures
        assert process.health() == 1
        assert faults.strike("threads")
        render(clients[0])
        assert process.metric("lumigrad_worker_restarts_total") == 0
        for client in clients:
            client.close()


_FEW_THREADS = """
import threading
start, started = threading.Thread.start, []
def limited(thread):
    started.append(thread)
    if len(started) > {limit}:
        raise RuntimeError("can't start new thread")
    start(thread)
threading.Thread.start = limited
"""


@pytest.mark.parametrize("limit", [100, 270])
def test_too_few_threads_at_the_start_are_no_fault_of_the_device(limit: int) -> None:
    options = ["serve", "--device", "cpu", "--port", "0", "--metrics-port", "0"]
    process = ForkedProcess(options, before=[_FEW_THREADS.format(limit=limit)])
    _, log = process.communicate(timeout=200)
    assert process.returncode == 2
    assert "--queue-size, --max-streams and --max-trainings need 264 threads for calls" in log
    allowed = re.search(r"but the system allows only (\d+); lower", log)
    # The supervisor has some threads, too.
    assert allowed is not None and limit - 10 < int(allowed[1]) <= limit
    assert "Traceback" not in log


@pytest.mark.parametrize(
    "statements",
    [
        ("os.dup2(os.open('/dev/full', os.O_WRONLY), 2)",),
        ("reading, writing = os.pipe()", "os.dup2(writing, 2)", "os.close(reading)"),
    ],
    ids=["full", "closed"],
)
def test_without_room_for_the_log_calls_are_served(statements: tuple[str, ...]) -> None:
    before = ("import os", *statements)
    with (
        worker("--device", "cpu", supervised=True, before=before) as process,
        Client(process.target, timeout_s=120, retry_s=120) as client,
    ):
        expected = client.render(cloud(), CAMERA).color
        # The fork server is the older child.
        children = psutil.Process(process.process.pid).children()
        max(children, key=lambda child: (child.create_time(), child.pid)).kill()
        assert np.array_equal(client.render(cloud(), CAMERA).color, expected)
        assert process.metric("lumigrad_worker_restarts_total") == 1
        assert process.log == ""
