"""Clients in processes that were forked after the client had been used."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from lumigrad.client import Client, Gaussians, LumigradError
from lumigrad.client.aio import AsyncClient
from lumigrad.client.base.forks import is_in_grpc
from lumigrad.client.default import default_client
from support.workers.client_load import CAMERA, cloud
from support.workers.worker import WorkerProcess, worker

SECONDS = 60


@pytest.fixture(scope="module")
def process() -> Iterator[WorkerProcess]:
    with worker("--device", "cpu") as started:
        yield started


def in_child(work: Callable[[], None]) -> None:
    """Does something in a forked process, which fails if it takes too long."""
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


def threads_in_grpc() -> list[bool]:
    return [is_in_grpc(frame) for frame in sys._current_frames().values()]


@contextmanager
def busy(work: Callable[[], object]) -> Iterator[None]:
    """Another thread is in the midst of a call."""
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join(SECONDS)


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
    def refused(client: Client) -> None:
        with pytest.raises(LumigradError, match="this process was forked"):
            client.info()

    with socket.create_server(("127.0.0.1", 0)) as silent, Client(process.target) as client:
        client.info()
        waiting = Client(f"127.0.0.1:{silent.getsockname()[1]}", retry_s=0.0)

        def wait() -> None:
            with pytest.raises(LumigradError):
                waiting.info(timeout_s=3.0)

        with busy(wait):
            # The call is under way, and stays so while its connection is open.
            connection, _ = silent.accept()
            with connection:
                in_child(lambda: refused(client))
        waiting.close()
    with Client([process.target, process.target.replace("127.0.0.1", "localhost")]) as several:
        # It watches the health of its workers all the time, but for pauses.
        until = time.monotonic() + 20
        while not any(threads_in_grpc()):
            several.info()
            assert time.monotonic() < until
        in_child(lambda: refused(several))
        assert several.info()


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


def test_a_trainer_of_the_parent_says_so_in_a_child(process: WorkerProcess) -> None:
    scene = Gaussians(np.zeros((1, 3)), np.ones((1, 4)), np.full((1, 3), 0.1), np.full(1, 0.5), colors=np.ones((1, 3)))
    target = np.zeros((1, CAMERA.height, CAMERA.width, 3), np.float32)
    with Client(process.target) as client, client.trainer(scene, [CAMERA], target, rates={"means": 1e-3}) as trainer:
        trainer.step()

        def work() -> None:
            for ask in (trainer.step, trainer.publish, trainer.snapshot, trainer.views):
                with pytest.raises(LumigradError, match="this process was forked"):
                    ask()
            trainer.close()

        in_child(work)
        # It is the parent's as before.
        assert trainer.step().number == 1


def test_a_client_that_was_closed_stays_closed_in_a_child(process: WorkerProcess) -> None:
    client = Client(process.target)
    client.info()
    client.close()

    def work() -> None:
        with pytest.raises(LumigradError, match="this client is closed"):
            client.info()

    in_child(work)
