"""All shared-memory lanes of a worker: those offered, those open, and the calls that name them."""

from __future__ import annotations

import re
import secrets
import socket
import threading
import time
from dataclasses import dataclass

from lumigrad.protos.lanes import NONCE_BYTES, TOKEN_BYTES
from lumigrad.server.call import Call
from lumigrad.server.errors import BusyError, NoLaneError
from lumigrad.server.lane import Lane, Lease
from lumigrad.server.lane_budget import LaneBudget
from lumigrad.server.lane_door import LaneDoor
from lumigrad.server.lane_payload import LostLane, NoLane, OpenLane
from lumigrad.server.metrics import Metrics
from lumigrad.v1 import worker_pb2

# In all, and of one tenant where tenants are told apart.
_MOST_LANES = 64
_MOST_OF_TENANT = 32
# Of one tenant at a time; the oldest go first.
_MOST_OFFERS = 16
_OFFER_SECONDS = 10.0
_RETRY_SECONDS = 10.0
_NAMED = re.compile(r"([0-9a-f]{32}):([0-9]{1,19})")


@dataclass(frozen=True)
class Offer:
    """A lane that somebody may open."""

    tenant: str
    nonce: bytes
    ends: float


class Lanes:
    """Tells callers apart: a token is good once, and the lane that it opens is its tenant's."""

    def __init__(self, limit_bytes: int, metrics: Metrics, *, has_tenants: bool) -> None:
        """0 bytes: there are no lanes."""
        self._budget = LaneBudget(limit_bytes, has_tenants=has_tenants)
        self._most_of_tenant = _MOST_OF_TENANT if has_tenants else _MOST_LANES
        self._metrics = metrics
        self._lock = threading.Lock()
        # The oldest first.
        self._offers: dict[bytes, Offer] = {}
        self._lanes: dict[bytes, Lane] = {}
        self._door = LaneDoor(self) if limit_bytes else None

    @property
    def memory_bytes(self) -> int:
        """Of all lanes."""
        return self._budget.bytes

    def __len__(self) -> int:
        """Lanes that are open."""
        return len(self._lanes)

    def offer(self, tenant: str) -> worker_pb2.OpenLaneReply:
        """Let a tenant open a lane."""
        if self._door is None:
            raise NoLaneError
        token, nonce = secrets.token_bytes(TOKEN_BYTES), secrets.token_bytes(NONCE_BYTES)
        with self._lock:
            if not self._may_open(tenant):
                raise BusyError("as many lanes of shared memory are open as may", _RETRY_SECONDS)
            waiting = [token for token, offer in self._offers.items() if offer.tenant == tenant]
            if len(waiting) >= _MOST_OFFERS:
                del self._offers[waiting[0]]
            self._offers[token] = Offer(tenant, nonce, time.monotonic() + _OFFER_SECONDS)
        return worker_pb2.OpenLaneReply(socket=self._door.name, token=token, nonce=nonce)

    def accept(self, token: bytes) -> Offer | None:
        """The offer that a caller comes for; nobody else can."""
        with self._lock:
            offer = self._offers.pop(token, None)
            is_good = offer is not None and offer.ends > time.monotonic() and self._may_open(offer.tenant)
            return offer if is_good else None

    def _may_open(self, tenant: str) -> bool:
        own = sum(lane.tenant == tenant for lane in self._lanes.values())
        return len(self._lanes) < _MOST_LANES and own < self._most_of_tenant

    def make(self, offer: Offer, link: socket.socket) -> Lane:
        """A lane that is not open yet."""
        return Lane(offer.tenant, link, self._budget)

    def open(self, token: bytes, lane: Lane) -> None:
        """Let calls name a lane."""
        with self._lock:
            self._lanes[token] = lane

    def close(self, token: bytes, lane: Lane) -> None:
        """Forget a lane whose caller has gone."""
        with self._lock:
            self._lanes.pop(token, None)
        lane.close()

    def refuse(self) -> None:
        """Somebody came to the door who was not let in."""
        self._fall_back("refused")

    def of(self, call: Call) -> NoLane:
        """The lane that a call names; a foreign one is one that does not exist."""
        if not call.lane_name:
            return NoLane()
        found = self._find(call.lane_name, call.tenant)
        if found is None:
            self._fall_back("lost")
            return LostLane()
        return OpenLane(*found, call.times, self._fall_back)

    def _find(self, name: str, tenant: str) -> tuple[Lane, Lease] | None:
        named = _NAMED.fullmatch(name)
        lane = self._lanes.get(bytes.fromhex(named[1])) if named else None
        if named is None or lane is None or lane.tenant != tenant:
            return None
        lease = lane.begin(int(named[2]))
        return None if lease is None else (lane, lease)

    def _fall_back(self, reason: str) -> None:
        self._metrics.lane_fallbacks.labels(reason).inc()
