"""The clients of those who pass none: one per target, made when first needed."""

from __future__ import annotations

import os
import threading

from lumigrad.client.client import Client
from lumigrad.client.targets import resolve_target

_lock = threading.Lock()
# Channels do not survive a fork, so each process has its own.
_clients: dict[tuple[int, str], Client] = {}


def default_client(target: str | None = None) -> Client:
    """The shared client of a target; None: LUMIGRAD_TARGET, else localhost:50051. Do not close it."""
    resolved = resolve_target(target)
    with _lock:
        client = _clients.get((os.getpid(), resolved))
        if client is None:
            client = _clients[os.getpid(), resolved] = Client(resolved)
        return client
