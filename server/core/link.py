"""A worker's end of the socket to its supervisor: receives the order, sends announcements and heartbeats.

Also what both do alike: print announcements, and receive signals.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from lumigrad.server.core.config import Config
from lumigrad.server.core.errors import FIRST

BEAT = b"beat"


@dataclass(frozen=True)
class History:
    """The restarts of this worker and the exit of the previous process."""

    restarts: int = 0
    last_exit: str = FIRST


class WorkerEnd:
    """The worker's end of the socket."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line

    def order(self) -> tuple[Config, History] | None:
        """Wait for the configuration and history to serve with; None if the supervisor has exited."""
        text = self._line.makefile("r", encoding="utf-8").readline()
        if not text:
            return None
        fields = json.loads(text)
        return Config(**fields["config"]), History(**fields["history"])

    def announce(self, text: str) -> None:
        """Send a line that the supervisor writes to standard output."""
        self._line.sendall(f"{text}\n".encode())

    def beat(self) -> None:
        """Send a heartbeat."""
        # A stopped supervisor must not block the worker; the beats already in the buffer suffice when it continues.
        with contextlib.suppress(OSError):
            self._line.send(BEAT + b"\n", socket.MSG_DONTWAIT)


def announce(text: str) -> None:
    """Print a line to standard output, whose reader may be gone.

    No buffer keeps what cannot be written: at the end of the process it would be an error.
    """
    with contextlib.suppress(OSError):
        os.write(sys.stdout.fileno(), f"{text}\n".encode())


def signal_pipe(numbers: Iterable[signal.Signals]) -> int:
    """Write signals to a pipe, whichever thread receives them; returns its reading end."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    for number in numbers:
        signal.signal(number, lambda *_: None)
    return reading
