"""The operators' default clients: one per target, created on first use."""

from __future__ import annotations

from typing import Any

from lumigrad.client.client import Client
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.transport.addresses import Targets

_CLIENTS: dict[str, Client] = {}


def default_client(target: str | None = None) -> Client:
    """Returns the shared client of a target; None: LUMIGRAD_TARGET, else localhost:50051. Do not close it."""
    name = Targets(target).text
    # If two threads create the first client at once, one of the clients is dropped unused.
    return _CLIENTS.get(name) or _CLIENTS.setdefault(name, Client(name))


def client_of(client: Any) -> Client:
    """Returns the client that an operator's argument means: a client, a target's shared client, or the default."""
    if isinstance(client, Client):
        return client
    if client is None or isinstance(client, str):
        return default_client(client)
    text = f'expected a Client, a target such as "localhost:50051", or None, got {type(client).__name__}'
    raise InvalidArgument.of("client", text)
