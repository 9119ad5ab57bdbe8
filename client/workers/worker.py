"""One worker, as a client knows it: the way there, its scenes, and the forward states that it keeps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lumigrad.client.transport.access import Access
from lumigrad.client.transport.addresses import Address
from lumigrad.client.transport.connection import Connection
from lumigrad.client.workers.contexts import Discards
from lumigrad.client.workers.health import Health
from lumigrad.client.workers.scene_store import SceneStore


class Worker:
    """Everything that belongs to one worker and to no other.

    Attributes:
        target: its address.
        connection: calls to it.
        store: its scenes.
        discards: forward states that nobody needs any more.
        health: what it says of itself, once somebody watches.
        under_way: calls of this client.
        asked: how many there have been.
    """

    def __init__(self, address: Address, access: Access) -> None:
        """Sets up, without connecting."""
        self.target = address.target
        self.connection = Connection(address, access)
        self.store = SceneStore(self.connection)
        self.discards = Discards(self.connection)
        self.health = Health(self.connection.channel)
        self.under_way = 0
        self.asked = 0

    def __repr__(self) -> str:
        return f"Worker({self.target!r})"

    @contextmanager
    def busy(self) -> Iterator[None]:
        """For the length of a `with` block, a call is under way."""
        # Not exact between threads, and need not be: it only helps to choose.
        self.under_way += 1
        self.asked += 1
        try:
            yield
        finally:
            self.under_way -= 1

    def close(self) -> None:
        """Ends the connection; calls under way are cancelled."""
        self.discards.close()
        self.health.close()
        self.connection.close()

    def abandon(self) -> None:
        """In a child of a fork: leaves everything to the parent."""
        self.discards.abandon()
        self.connection.abandon()
