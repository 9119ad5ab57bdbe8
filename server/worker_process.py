"""A worker's process as its supervisor sees it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence

from lumigrad.server.link import Order, SupervisorEnd
from lumigrad.server.supervised import PARENT

_ENVIRONMENT = {
    # gRPC's core would otherwise log a bare line for each failed handshake.
    "GRPC_VERBOSITY": "ERROR",
    # glibc gives each of the worker's 150 threads a heap of its own, up to eight per core. Each of them keeps the free
    # memory of its busiest moment, so that memory would grow for hours.
    "MALLOC_ARENA_MAX": "4",
}
# For a process that does not answer to write down where it stands.
_DUMP_SECONDS = 0.5


class WorkerProcess:
    """Loads everything as soon as it is made, and serves once it is ordered to."""

    def __init__(self, command: Sequence[str]) -> None:
        mine, its = socket.socketpair()
        with its:
            self._process = subprocess.Popen(
                command,
                stdin=its.fileno(),
                env={**_ENVIRONMENT, **os.environ, PARENT: str(os.getpid())},
                # Control-C in a terminal is for the supervisor, which passes it on.
                start_new_session=True,
            )
        self.line = SupervisorEnd(mine)
        self.heard = time.monotonic()
        self.announced = False

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def order(self, order: Order) -> None:
        """Have it serve."""
        self.heard = time.monotonic()
        self.line.send(order)

    def announcements(self) -> Iterator[str] | None:
        """What it has to say for standard output; None if it has hung up."""
        texts = self.line.announcements()
        if texts is None:
            return None
        self.heard = time.monotonic()
        said = list(texts)
        self.announced = self.announced or bool(said)
        return iter(said)

    def ended(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def stop(self) -> None:
        """Have it drain and end."""
        self._process.send_signal(signal.SIGTERM)

    def dump(self) -> None:
        """Have it write the stacks of its threads to the log, and give it the time for that."""
        self._process.send_signal(signal.SIGQUIT)
        time.sleep(_DUMP_SECONDS)

    def kill(self) -> int:
        """End it at once; returns how it ended."""
        self._process.kill()
        return self._process.wait()

    def close(self) -> None:
        """Hang up; a spare that waits for an order ends by itself."""
        self.line.close()
