"""The worker of model-based tests: with tenants, little memory for scenes, and a method that kills it."""

from __future__ import annotations

import functools
import math
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.calls.raw_calls import RawClient
from support.workers.spooling import kill
from support.workers.tenant import tenant_client
from support.workers.worker import WorkerProcess, worker

TENANTS = ("alice", "bob")
TOKENS = {tenant: f"{tenant}-0123456789abcdef" for tenant in TENANTS}
# Two of the larger scenes fit into memory, and all into the spool.
LIMITS = ("--max-payload-mib", "1", "--scene-mib", "2", "--spool-mib", "256")


class ModelWorker:
    """A worker under a supervisor, and raw clients of its tenants."""

    def __init__(self, process: WorkerProcess, has_spool: bool) -> None:
        self.process = process
        self.has_spool = has_spool
        # All names that the worker has returned.
        self.names: set[str] = set()
        # The steps of the machine, and the first error.
        self.history: list[str] = []
        self.error = ""
        # Number of calls that were answered since the last kill.
        self.answers = 0
        # The end of the test's time, by the monotonic clock.
        self.until = math.inf
        self._dying = threading.Lock()
        self._killer: threading.Thread | None = None
        self._channel = process.channel()
        self.reconnect()

    def kill(self) -> bool:
        """Kill the process and wait for its replacement; does nothing when time is up, because this takes long."""
        if time.monotonic() > self.until:
            return False
        with self._dying:
            kill(self.process)
        self.reconnect()
        return True

    def kill_soon(self, seconds: float) -> threading.Thread:
        """Kill the process after a while, in another thread; wait for this before reconnecting."""

        def work() -> None:
            time.sleep(seconds)
            with self._dying:
                kill(self.process)

        self._killer = threading.Thread(target=work)
        self._killer.start()
        return self._killer

    def settle(self) -> None:
        """Wait until the worker is back after a kill."""
        if self._killer is not None:
            self._killer.join()
        self.process.health()

    def reconnect(self) -> None:
        """Connect to the process that replaced another."""
        # A channel that has lost its worker would wait longer than this.
        self.process.health()
        self._channel.close()
        self._channel = self.process.channel()
        self.clients: dict[str, RawClient] = {name: tenant_client(self._channel, TOKENS[name]) for name in TENANTS}

    def close(self) -> None:
        """End the connection."""
        self._channel.close()


def noted(step: Callable[..., Any]) -> Callable[..., Any]:
    """A rule of a machine that records its steps, because a failure may not recur when Hypothesis repeats them."""

    @functools.wraps(step)
    def take(machine: Any, **arguments: Any) -> Any:
        place: ModelWorker = machine.place
        if not place.error:
            place.history.append(f"{step.__name__} {arguments}")
        try:
            return step(machine, **arguments)
        except Exception:
            place.error = place.error or traceback.format_exc()
            raise

    return take


@contextmanager
def model_worker(folder: Path, *, has_spool: bool) -> Iterator[ModelWorker]:
    """A worker for the length of a `with` block; `folder` is for its files."""
    (folder / "tokens").write_text("".join(f"{name}: {token}\n" for name, token in TOKENS.items()))
    options = ["--tokens-file", str(folder / "tokens"), *(["--spool", str(folder / "spool")] if has_spool else [])]
    # A short crash window, so that the next process starts without delay.
    with worker("--device", "cpu", "--crash-seconds", "0.1", *LIMITS, *options, supervised=True) as process:
        place = ModelWorker(process, has_spool)
        try:
            yield place
        finally:
            place.close()
