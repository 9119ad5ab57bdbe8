"""The clients of those who pass none: one per target, made when first needed."""

from __future__ import annotations

import threading
from typing import Any

from lumigrad.client.base import forks
from lumigrad.client.client import Client
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.transport.addresses import resolve_target


class _Clients:
    """Shared clients by their targets. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_target: dict[str, Client] = {}
        forks.follow(self)

    def of(self, target: str) -> Client:
        """The one client of a target."""
        with self._lock:
            client = self._by_target.get(target)
            if client is None:
                client = self._by_target[target] = Client(target)
            return client

    def after_fork(self, is_sound: bool) -> None:
        """A thread that is not there any more may have held the lock; the clients begin anew by themselves."""
        self._lock = threading.Lock()


_CLIENTS = _Clients()


def default_client(target: str | None = None) -> Client:
    """The shared client of a target; None: LUMIGRAD_TARGET, else localhost:50051. Do not close it."""
    return _CLIENTS.of(resolve_target(target))


def client_of(client: Any) -> Client:
    """What an operator is given as `client`: a client, or a target whose shared client is meant; None: the default."""
    if isinstance(client, Client):
        return client
    if client is None or isinstance(client, str):
        return default_client(client)
    text = f'expected a Client, a target such as "localhost:50051", or None, got {type(client).__name__}'
    raise InvalidArgument.of("client", text)
