"""The socket between a supervisor and one of its workers: orders one way, announcements and heartbeats the other."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass

from lumigrad.server.core.config import Config
from lumigrad.server.core.errors import FIRST

_BEAT = "beat"
_RECEIVE_BYTES = 4096


@dataclass(frozen=True)
class History:
    """The restarts of this worker and the exit of the previous process."""

    restarts: int = 0
    last_exit: str = FIRST


@dataclass(frozen=True)
class Order:
    """The configuration and history that a worker starts with."""

    config: Config
    history: History


class WorkerEnd:
    """The worker's end of the socket."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line

    def order(self) -> Order | None:
        """Wait for the order; None if the supervisor has exited."""
        text = self._line.makefile("r", encoding="utf-8").readline()
        if not text:
            return None
        fields = json.loads(text)
        return Order(Config(**fields["config"]), History(**fields["history"]))

    def announce(self, text: str) -> None:
        """Send a line that the supervisor writes to standard output."""
        self._line.sendall(f"{text}\n".encode())

    def beat(self) -> None:
        """Send a heartbeat."""
        # A stopped supervisor must not block the worker; when it continues it finds enough beats.
        with contextlib.suppress(OSError):
            self._line.send(f"{_BEAT}\n".encode(), socket.MSG_DONTWAIT)


class SupervisorEnd:
    """The supervisor's end of the socket; it never blocks."""

    def __init__(self, line: socket.socket) -> None:
        line.setblocking(False)
        self._line = line
        self._received = b""

    def fileno(self) -> int:
        """The descriptor, for a selector."""
        return self._line.fileno()

    def send(self, order: Order) -> None:
        """Send the order; a worker that has just exited is not an error."""
        fields = {"config": dataclasses.asdict(order.config), "history": dataclasses.asdict(order.history)}
        with contextlib.suppress(OSError):
            self._line.sendall(f"{json.dumps(fields)}\n".encode())

    def announcements(self) -> Iterator[str] | None:
        """The lines that the worker announced, without heartbeats; None if it closed the socket."""
        try:
            received = self._line.recv(_RECEIVE_BYTES)
        except OSError:
            return None
        if not received:
            return None
        *lines, self._received = (self._received + received).split(b"\n")
        return iter([line.decode() for line in lines if line != _BEAT.encode()])

    def close(self) -> None:
        """Close the socket."""
        self._line.close()
