"""A worker's process: its entry point, and the supervisor's handle on it."""

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
# The environment variable that holds the supervisor's process id.
PARENT = "LUMIGRAD_SUPERVISOR"

# Without the current directory in the path, where a torch.py would shadow the module.
COMMAND = (
    sys.executable,
    "-c",
    "import sys; sys.path[:] = filter(None, sys.path); "
    "from lumigrad.server.process.child import main; sys.exit(main())",
)


def main() -> int:
    """Run one worker as ordered on standard input; returns the exit code."""
    _die_with_parent()
    line = socket.socket(fileno=_LINE)
    # Imported before the order arrives, because imports take most of a worker's start.
    from lumigrad.server.core.link import WorkerEnd
    from lumigrad.server.process.main import run

    end = WorkerEnd(line)
    order = end.order()
    return 0 if order is None else run(order.config, order.history, end)


def _die_with_parent() -> None:
    """Make the kernel kill this worker when the supervisor ends, so that port and device are freed."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The supervisor may have ended before `prctl`.
    if str(os.getppid()) != os.environ.get(PARENT):
        os._exit(0)


_ENVIRONMENT = {
    # gRPC's core would otherwise log a bare line for each failed handshake.
    "GRPC_VERBOSITY": "ERROR",
    # glibc gives each of the worker's 150 threads a heap of its own, up to eight per core. Each of them keeps the free
    # memory of its busiest moment, so that memory would grow for hours.
    "MALLOC_ARENA_MAX": "4",
}
# The time for a hung process to log its stacks.
_DUMP_SECONDS = 0.5


class WorkerProcess:
    """A process that loads everything when created, and serves once it gets an order."""

    def __init__(self, command: Sequence[str]) -> None:
        mine, its = socket.socketpair()
        with its:
            self._process = subprocess.Popen(
                command,
                stdin=its.fileno(),
                env={**_ENVIRONMENT, **os.environ, PARENT: str(os.getpid())},
                # Only the supervisor gets a terminal's Control-C; it forwards the signal.
                start_new_session=True,
            )
        self.line = SupervisorEnd(mine)
        self.heard = time.monotonic()
        self.announced = False

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def order(self, order: Order) -> None:
        """Send the order to serve."""
        self.heard = time.monotonic()
        self.line.send(order)

    def announcements(self) -> Iterator[str] | None:
        """The lines that it announced, for standard output; None if it closed the socket."""
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
        """Ask it to drain and exit."""
        self._process.send_signal(signal.SIGTERM)

    def dump(self) -> None:
        """Ask it to log the stacks of its threads, and wait for that."""
        self._process.send_signal(signal.SIGQUIT)
        time.sleep(_DUMP_SECONDS)

    def kill(self) -> int:
        """Kill it; returns its exit code."""
        self._process.kill()
        return self._process.wait()

    def close(self) -> None:
        """Close the socket; a spare that waits for an order then exits."""
        self.line.close()
