"""One worker, as a client knows it: the way there, its scenes, and the forward states that it keeps."""

from __future__ import annotations

from lumigrad.client.transport.access import Access
from lumigrad.client.transport.addresses import Address
from lumigrad.client.transport.connection import Connection
from lumigrad.client.workers.health import Health
from lumigrad.client.workers.releases import Releases
from lumigrad.client.workers.scene_store import SceneStore


class Worker:
    """Everything that belongs to one worker and to no other.

    Attributes:
        target: its address.
        connection: calls to it.
        store: its scenes.
        releases: forward states that nobody needs any more.
        health: what it says of itself, once somebody watches.
        under_way: calls of this client.
        asked: how many there have been.
    """

    def __init__(self, address: Address, access: Access) -> None:
        """Sets up, without connecting."""
        self.target = address.target
        self.connection = Connection(address, access)
        self.store = SceneStore(self.connection)
        self.releases = Releases(self.connection)
        self.health = Health(self.connection.channel)
        self.under_way = 0
        self.asked = 0

    def __repr__(self) -> str:
        return f"Worker({self.target!r})"

    def enter(self) -> None:
        """Notes that a call is under way."""
        # Not exact between threads, and need not be: it only helps to choose.
        self.under_way += 1
        self.asked += 1

    def leave(self) -> None:
        """Notes that a call is not under way any more."""
        self.under_way -= 1

    def close(self) -> None:
        """Ends the connection; calls under way are cancelled."""
        self.releases.close()
        self.health.close()
        self.connection.close()

    def abandon(self) -> None:
        """In a child of a fork: leaves everything to the parent."""
        self.releases.abandon()
        self.connection.abandon()
