"""The supervisor's handle on a worker process."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import time

from lumigrad.server.core.config import Config
from lumigrad.server.core.link import BEAT, History

_RECEIVE_BYTES = 4096
# The time that a hung process gets to log its stacks.
_DUMP_SECONDS = 0.5


class WorkerProcess:
    """A child process that serves once it gets an order. The socket to it never blocks.

    Attributes:
        heard: The time of the last message, by the monotonic clock.
        announced: Whether it has announced that it serves.
        returncode: Its exit code, negative for a signal; None while it runs.
    """

    def __init__(self, pid: int, line: socket.socket) -> None:
        self.pid = pid
        self.line = line
        self.line.setblocking(False)
        self.heard = time.monotonic()
        self.announced = False
        self.returncode: int | None = None
        self._received = b""

    def order(self, config: Config, history: History) -> None:
        """Send the order to serve; a worker that has just exited is not an error."""
        fields = {"config": dataclasses.asdict(config), "history": dataclasses.asdict(history)}
        with contextlib.suppress(OSError):
            self.line.sendall(f"{json.dumps(fields)}\n".encode())

    def announcements(self) -> list[str] | None:
        """Return the lines that the process announced, without heartbeats; None if it closed the socket."""
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

    def poll(self) -> int | None:
        """Return the exit code once the process has ended."""
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def terminate(self) -> None:
        """Ask the process to stop."""
        self._send_signal(signal.SIGTERM)

    def dump(self) -> None:
        """Ask the process to log the stacks of its threads, and give it time to do so."""
        self._send_signal(signal.SIGQUIT)
        time.sleep(_DUMP_SECONDS)

    def kill(self) -> None:
        """Kill the process; it ends soon, unless a driver holds it in the kernel."""
        self._send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Close the socket."""
        self.line.close()

    def _send_signal(self, number: signal.Signals) -> None:
        # An ended process keeps its pid until it is reaped.
        if self.poll() is None:
            os.kill(self.pid, number)
