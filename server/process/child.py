"""A worker's process: its entry point, and the supervisor's handle on it."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from lumigrad.server.core.config import Config
from lumigrad.server.core.link import BEAT, History

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
    return 0 if order is None else run(*order, end)


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
_RECEIVE_BYTES = 4096
# The time for a hung process to log its stacks.
_DUMP_SECONDS = 0.5


class WorkerProcess(subprocess.Popen[bytes]):
    """A process that loads everything when created, and serves once it gets an order; the socket to it never blocks."""

    def __init__(self, command: Sequence[str]) -> None:
        self.line, its = socket.socketpair()
        self.line.setblocking(False)
        self._received = b""
        with its:
            super().__init__(
                command,
                stdin=its.fileno(),
                env={**_ENVIRONMENT, **os.environ, PARENT: str(os.getpid())},
                # Only the supervisor gets a terminal's Control-C; it forwards the signal.
                start_new_session=True,
            )
        self.heard = time.monotonic()
        self.announced = False

    def order(self, config: Config, history: History) -> None:
        """Send the order to serve; a worker that has just exited is not an error."""
        self.heard = time.monotonic()
        fields = {"config": dataclasses.asdict(config), "history": dataclasses.asdict(history)}
        with contextlib.suppress(OSError):
            self.line.sendall(f"{json.dumps(fields)}\n".encode())

    def announcements(self) -> list[str] | None:
        """The lines that it announced, for standard output, without heartbeats; None if it closed the socket."""
        try:
            received = self.line.recv(_RECEIVE_BYTES)
        except OSError:
            return None
        if not received:
            return None
        self.heard = time.monotonic()
        *lines, self._received = (self._received + received).split(b"\n")
        said = [line.decode() for line in lines if line != BEAT]
        self.announced = self.announced or bool(said)
        return said

    def dump(self) -> None:
        """Ask it to log the stacks of its threads, and wait for that."""
        self.send_signal(signal.SIGQUIT)
        time.sleep(_DUMP_SECONDS)

    def kill(self) -> None:
        """Kill it, and wait for its end."""
        super().kill()
        self.wait()

    def close(self) -> None:
        """Close the socket; a spare that waits for an order then exits."""
        self.line.close()
