"""Workers that are lost in different ways, and replaced by their supervisor."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from lumigrad.client import Client, Gaussians
from support.calls import verbs
from support.workers.client_load import renders
from support.workers.faults import faulty_worker
from support.workers.spooling import wait_until_written
from support.workers.worker import WorkerProcess, worker
from tests.benchmarks.recovery.case import Case, Incident

# Each crash is forgotten before the next, so that no pause is longer than the first.
_FORGETFUL = ("--crash-seconds", "0.1")
_HANG_SECONDS = 2
_LARGE = 200_000
_RETRY_SECONDS = 60.0


@contextmanager
def _lost(number: int, *options: str) -> Iterator[Incident]:
    """The worker receives a signal."""
    with (
        worker("--device", "cpu", *_FORGETFUL, *options, supervised=True) as process,
        Client(process.target, retry_s=_RETRY_SECONDS) as client,
    ):
        yield Incident(lambda: _settle(process), lambda: os.kill(process.worker_pid, number), renders(client))


@contextmanager
def _drained() -> Iterator[Incident]:
    """The worker is asked to end, and announces that for a second: calls go on until it is replaced."""
    with (
        # The default, which `worker` would replace by no lame duck.
        worker("--lame-duck-seconds", "1", "--device", "cpu", supervised=True) as process,
        Client(process.target, retry_s=_RETRY_SECONDS) as client,
    ):
        old = [0]

        def strike() -> None:
            old[0] = process.worker_pid
            os.kill(old[0], signal.SIGTERM)

        def is_over() -> bool:
            return process.worker_pid != old[0]

        yield Incident(lambda: _settle(process), strike, renders(client), is_over=is_over)


@contextmanager
def _armed(fault: str, *options: str) -> Iterator[Incident]:
    """The next call meets a fault in the engine."""
    with (
        tempfile.TemporaryDirectory() as folder,
        faulty_worker(Path(folder), *_FORGETFUL, *options) as (process, faults),
        Client(process.target, retry_s=_RETRY_SECONDS) as client,
    ):
        yield Incident(lambda: _settle(process), lambda: faults.arm(fault), renders(client))


@contextmanager
def _stopped() -> Iterator[Incident]:
    with _lost(signal.SIGSTOP, "--hang-seconds", str(_HANG_SECONDS)) as incident:
        yield incident


@contextmanager
def _forgotten(has_spool: bool) -> Iterator[Incident]:
    """The new worker does not have a large scene in memory."""
    with tempfile.TemporaryDirectory() as folder:
        spool = ("--spool", f"{folder}/spool") if has_spool else ()
        with (
            worker("--device", "cpu", *_FORGETFUL, *spool, supervised=True) as process,
            Client(process.target, retry_s=_RETRY_SECONDS) as client,
        ):
            scene = client.put(_many_gaussians())
            expected = client.render(scene, verbs.CAMERA).color

            def call() -> None:
                assert np.array_equal(client.render(scene, verbs.CAMERA).color, expected), "a wrong picture"

            def ready() -> None:
                _settle(process)
                if has_spool:
                    wait_until_written(process)

            yield Incident(ready, lambda: os.kill(process.worker_pid, signal.SIGKILL), call)


def _settle(process: WorkerProcess) -> None:
    process.wait_for_health(1)


def _many_gaussians() -> Gaussians:
    random = np.random.default_rng(0)
    return Gaussians(
        random.normal(size=(_LARGE, 3)).astype("f4"),
        np.tile(np.array([1, 0, 0, 0], "f4"), (_LARGE, 1)),
        np.full((_LARGE, 3), 0.005, "f4"),
        np.full(_LARGE, 0.5, "f4"),
        sh=random.normal(size=(_LARGE, 16, 3)).astype("f4"),
    )


def _case(fault: str, stage: Callable[..., object], *arguments: object, **settings: object) -> Case:
    return Case(fault, lambda: stage(*arguments, **settings))  # type: ignore[arg-type, return-value]


CASES = (
    _case("worker killed", _lost, signal.SIGKILL),
    _case("worker crashed (SIGSEGV)", _lost, signal.SIGSEGV),
    _case("worker drained and replaced, longest call", _drained),
    _case(f"device hangs (`--hang-seconds {_HANG_SECONDS}`)", _armed, "hang", "--hang-seconds", str(_HANG_SECONDS)),
    _case(f"worker stands still (`--hang-seconds {_HANG_SECONDS}`)", _stopped),
    _case("device lost (an error that stays)", _armed, "sticky"),
    _case("worker killed, 200,000 Gaussians in its spool", _forgotten, True),
    _case("worker killed, 200,000 Gaussians sent again", _forgotten, False),
)
