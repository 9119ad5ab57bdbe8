"""A worker's process, as its supervisor sees it and as it sees its supervisor."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

from lumigrad.server.core.link import Order, SupervisorEnd

# prctl(2): the signal that a process is sent when its parent dies.
_PR_SET_PDEATHSIG = 1
_LINE = 0
# The environment variable that tells a worker whose it is.
PARENT = "LUMIGRAD_SUPERVISOR"

# A file called torch.py in the current directory is none of ours.
COMMAND = (
    sys.executable,
    "-c",
    "import sys; sys.path[:] = filter(None, sys.path); "
    "from lumigrad.server.process.child import main; sys.exit(main())",
)


def main() -> int:
    """Run one worker as the order on standard input says; returns the exit code."""
    _die_with_parent()
    line = socket.socket(fileno=_LINE)
    # Imported before the order comes: this is what takes the time when a worker is needed at once.
    from lumigrad.server.core.link import WorkerEnd
    from lumigrad.server.process.main import run

    end = WorkerEnd(line)
    order = end.order()
    return 0 if order is None else run(order.config, order.history, end)


def _die_with_parent() -> None:
    """Leave no worker behind that holds the port and the device, however the supervisor ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # It may have gone before it was asked for.
    if str(os.getppid()) != os.environ.get(PARENT):
        os._exit(0)


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
