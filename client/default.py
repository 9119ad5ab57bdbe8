"""The default clients of operators: one per target, made when it is first needed."""

from __future__ import annotations

from typing import Any

from lumigrad.client.client import Client
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.transport.addresses import Targets

_CLIENTS: dict[str, Client] = {}


def default_client(target: str | None = None) -> Client:
    """Returns the shared client of a target; None: LUMIGRAD_TARGET, else localhost:50051. Do not close it."""
    name = Targets(target).text
    # Two threads may make the first client at once; one of the two is dropped unused.
    return _CLIENTS.get(name) or _CLIENTS.setdefault(name, Client(name))


def client_of(client: Any) -> Client:
    """Returns the client for an operator's argument: itself, the shared client of a target, or for None the default."""
    if isinstance(client, Client):
        return client
    if client is None or isinstance(client, str):
        return default_client(client)
    text = f'expected a Client, a target such as "localhost:50051", or None, got {type(client).__name__}'
    raise InvalidArgument.of("client", text)
