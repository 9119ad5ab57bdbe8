"""Clients in processes that were forked after the client had been used."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from lumigrad.client import Client, LumigradError
from lumigrad.client.aio import AsyncClient
from lumigrad.client.base.forks import is_in_grpc
from lumigrad.client.default import default_client
from support.workers.client_load import CAMERA, cloud
from support.workers.slow_render import wait_until
from support.workers.worker import WorkerProcess, worker

SECONDS = 60


@pytest.fixture(scope="module")
def process() -> Iterator[WorkerProcess]:
    with worker("--device", "cpu") as started:
        yield started


def in_child(work: Callable[[], None]) -> None:
    """Does something in a forked process, which fails if it takes too long."""
    # On a busy machine gRPC's thread of a call that has just ended takes a while to leave it.
    wait_until(lambda: not any(map(is_in_grpc, sys._current_frames().values())), "the end of all calls")
    child = os.fork()
    if child == 0:
        # The parent waits no longer; and it tells where the child stood.
        faulthandler.dump_traceback_later(SECONDS - 10, exit=True)
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    until = time.monotonic() + SECONDS
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise AssertionError("the child does not end")
        time.sleep(0.02)


def test_a_client_opens_a_connection_of_its_own_in_a_child(process: WorkerProcess) -> None:
    with Client(process.target) as client:
        handle = client.put(cloud())
        frame = client.render(handle, CAMERA, retain=True)
        upstream = np.ones_like(frame.color)
        expected = frame.backward(upstream)

        def work() -> None:
            assert np.array_equal(client.render(handle, CAMERA).color, frame.color)
            # The forward state is the parent's, and stays so: here it is computed again.
            assert np.array_equal(frame.backward(upstream, release=True).positions, expected.positions)
            frame.release()
            assert client.info().contexts == 1

        for _ in range(3):
            in_child(work)
        assert client.info().contexts == 1
        assert np.array_equal(frame.backward(upstream, release=True).positions, expected.positions)


def test_a_child_of_a_process_with_calls_under_way_says_so(process: WorkerProcess) -> None:
    # gRPC's own handling of forks would end some of the children, see docs/operations/shared_memory.md.
    environment = {**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "0"}
    command = [sys.executable, "-m", "support.workers.busy_forks", process.target]
    tests = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=tests, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_the_default_client_and_coroutines_go_on_in_a_child(
    process: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LUMIGRAD_TARGET", process.target)
    expected = default_client().render(cloud(), CAMERA).color
    client = AsyncClient(process.target)

    async def render() -> None:
        assert np.array_equal((await client.render(cloud(), CAMERA)).color, expected)

    asyncio.run(render())

    def work() -> None:
        assert np.array_equal(default_client().render(cloud(), CAMERA).color, expected)
        asyncio.run(render())

    in_child(work)
    asyncio.run(render())
    asyncio.run(client.close())


def test_a_client_that_was_closed_stays_closed_in_a_child(process: WorkerProcess) -> None:
    client = Client(process.target)
    client.info()
    client.close()

    def work() -> None:
        with pytest.raises(LumigradError, match="this client is closed"):
            client.info()

    in_child(work)
