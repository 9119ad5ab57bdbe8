"""The line between a supervisor and one of its workers: an order goes down, signs of life come up."""

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
    """What the supervisor tells a worker of those before it."""

    restarts: int = 0
    last_exit: str = FIRST


@dataclass(frozen=True)
class Order:
    """What a worker is to do."""

    config: Config
    history: History


class WorkerEnd:
    """The worker's end of the line."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line

    def order(self) -> Order | None:
        """Wait for the order; None if the supervisor has gone."""
        text = self._line.makefile("r", encoding="utf-8").readline()
        if not text:
            return None
        fields = json.loads(text)
        return Order(Config(**fields["config"]), History(**fields["history"]))

    def announce(self, text: str) -> None:
        """Have the supervisor write a line to standard output."""
        self._line.sendall(f"{text}\n".encode())

    def beat(self) -> None:
        """Say that this process is alive."""
        # A supervisor that stands still must not hold the worker up; it finds enough beats when it goes on.
        with contextlib.suppress(OSError):
            self._line.send(f"{_BEAT}\n".encode(), socket.MSG_DONTWAIT)


class SupervisorEnd:
    """The supervisor's end of the line; it never waits."""

    def __init__(self, line: socket.socket) -> None:
        line.setblocking(False)
        self._line = line
        self._received = b""

    def fileno(self) -> int:
        """For a selector."""
        return self._line.fileno()

    def send(self, order: Order) -> None:
        """Give the order; a worker that has just died is not an error here."""
        fields = {"config": dataclasses.asdict(order.config), "history": dataclasses.asdict(order.history)}
        with contextlib.suppress(OSError):
            self._line.sendall(f"{json.dumps(fields)}\n".encode())

    def announcements(self) -> Iterator[str] | None:
        """What the worker announced, beats left out; None if it has hung up."""
        try:
            received = self._line.recv(_RECEIVE_BYTES)
        except OSError:
            return None
        if not received:
            return None
        *lines, self._received = (self._received + received).split(b"\n")
        return iter([line.decode() for line in lines if line != _BEAT.encode()])

    def close(self) -> None:
        """Hang up."""
        self._line.close()
