"""The lanes of a worker: opens them over a Unix socket, and finds the lane of a call."""

from __future__ import annotations

import os
import re
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lumigrad.protos.lanes import (
    NONCE_BYTES,
    PACKET_BYTES,
    SINGLE_REPLIES,
    TOKEN_BYTES,
    Packet,
    ToCaller,
    ToWorker,
    address_of,
    peer_uid,
    unpack_hello,
)
from lumigrad.server.core import logs
from lumigrad.server.core.accounts import Account
from lumigrad.server.core.call import Call, Metadata, NoLane
from lumigrad.server.core.errors import BusyError, NoLaneError, UnauthenticatedError
from lumigrad.server.core.metrics import Metrics
from lumigrad.server.core.pinned import Pinner
from lumigrad.server.core.record import StageTimes
from lumigrad.server.shm.lane import Lane, Region
from lumigrad.server.shm.payload import LostLane, OpenLane
from lumigrad.v1 import worker_pb2

# Limit on connections whose lane is not open yet, and the time that opening may take.
_MAX_UNOPENED = 16
_OPEN_SECONDS = 5.0
_BACKLOG = 128
_IDLE_SECONDS = 30.0
_PAUSE_SECONDS = 0.05
# How often connections are checked for timeouts: not with each packet, since every call sends some.
_LOOK_SECONDS = 1.0
_ROOT = 0


@dataclass(eq=False)
class _Connection:
    link: socket.socket
    until: float
    token: bytes = b""
    offer: Offer | None = None
    lane: Lane | None = None
    # Both sides write to this region to verify that they share memory.
    region: Region | None = None
    is_open: bool = False


# Limits on open lanes in all, and per tenant if there are tenants.
_MAX_LANES = 64
_MAX_TENANT_LANES = 32
# Limit on pending offers of one tenant; beyond it, the oldest is dropped.
_MAX_OFFERS = 16
_OFFER_SECONDS = 10.0
_RETRY_SECONDS = 10.0
_NAMED = re.compile(r"([0-9a-f]{32}):([0-9]{1,19})")


@dataclass(frozen=True)
class Offer:
    """Permission to open a lane: the tenant of the call that asked for it, and the call's metadata."""

    tenant: str
    metadata: Metadata
    nonce: bytes
    ends: float


class Lanes:
    """The open lanes, and offers of new lanes. A token is valid once, and opens a lane of its tenant.

    Accepts connections of the same user, or root, with a valid token; closes connections that break the protocol, and
    those of tenants that are no longer admitted.
    """

    def __init__(
        self,
        limit_bytes: int,
        metrics: Metrics,
        pinner: Pinner | None,
        check: Callable[[str, Metadata], None] | None,
    ) -> None:
        """Open a socket for lanes, unless `limit_bytes` is 0.

        `pinner`, if needed, registers memory for the device. `check` raises UnauthenticatedError if a call of a tenant
        with some metadata would not be admitted any more; None if all callers are one tenant.
        """
        self._pinner = pinner
        self._check = check
        has_tenants = check is not None
        share = limit_bytes // 2 if has_tenants else None
        self._account = Account("bytes of shared memory", limit_bytes, "--lane-mib", share=share)
        self._max_tenant_lanes = _MAX_TENANT_LANES if has_tenants else _MAX_LANES
        self._metrics = metrics
        self._lock = threading.Lock()
        # Pending offers by token, the oldest first.
        self._offers: dict[bytes, Offer] = {}
        self._lanes: dict[bytes, Lane] = {}
        # An unguessable, unused name.
        self._name = f"lumigrad-{secrets.token_hex(16)}" if limit_bytes else ""
        self._connections: set[_Connection] = set()
        if limit_bytes:
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._selector = selectors.DefaultSelector()
            self._listener.bind(address_of(self._name))
            self._listener.listen(_BACKLOG)
            self._listener.setblocking(False)
            self._selector.register(self._listener, selectors.EVENT_READ)
            threading.Thread(target=self._listen, name="lanes", daemon=True).start()

    @property
    def memory_bytes(self) -> int:
        """The bytes of all lanes."""
        return self._account.taken

    def __len__(self) -> int:
        """Return the number of open lanes."""
        return len(self._lanes)

    def offer(self, tenant: str, metadata: Metadata) -> worker_pb2.OpenLaneReply:
        """Offer a lane to a tenant, whose call has this metadata.

        Raises NoLaneError if the worker has none, BusyError if too many are open.
        """
        if not self._name:
            raise NoLaneError
        token, nonce = secrets.token_bytes(TOKEN_BYTES), secrets.token_bytes(NONCE_BYTES)
        with self._lock:
            if not self._may_open(tenant):
                raise BusyError("the maximum number of shared-memory lanes is open", _RETRY_SECONDS)
            waiting = [token for token, offer in self._offers.items() if offer.tenant == tenant]
            if len(waiting) >= _MAX_OFFERS:
                del self._offers[waiting[0]]
            self._offers[token] = Offer(tenant, metadata, nonce, time.monotonic() + _OFFER_SECONDS)
        return worker_pb2.OpenLaneReply(socket=self._name, token=token, nonce=nonce)

    def _may_open(self, tenant: str) -> bool:
        own = sum(lane.tenant == tenant for lane in self._lanes.values())
        return len(self._lanes) < _MAX_LANES and own < self._max_tenant_lanes

    def of(self, call: Call) -> NoLane:
        """Return the lane that a call names; another tenant's lane is treated as missing."""
        found = self.find(call.lane_name, call.tenant, call.times)
        if found is None:
            self._fall_back("lost")
            return LostLane()
        return found

    def find(self, name: str, tenant: str, times: StageTimes) -> OpenLane | None:
        """Return the lane that a call names; None if it is not open to the caller, or the lease has ended."""
        named = _NAMED.fullmatch(name)
        lane = self._lanes.get(bytes.fromhex(named[1])) if named else None
        if named is None or lane is None or lane.tenant != tenant:
            return None
        lease = lane.begin(int(named[2]))
        return None if lease is None else OpenLane(lane, lease, times, self._fall_back)

    def freeze(self) -> None:
        """Lease no more memory of open lanes, because the device is lost."""
        with self._lock:
            for lane in self._lanes.values():
                lane.freeze()

    def _fall_back(self, reason: str) -> None:
        self._metrics.lane_fallbacks.labels(reason).inc()

    def _listen(self) -> None:
        looked = 0.0
        while True:
            for key, _ in self._selector.select(_LOOK_SECONDS if self._connections else None):
                if key.data is None:
                    self._accept()
                else:
                    self._serve(key.data)
            now = time.monotonic()
            if now > looked + _LOOK_SECONDS:
                looked = now
                self._look(now)

    def _look(self, now: float) -> None:
        for connection in list(self._connections):
            if connection.is_open and connection.lane is not None:
                connection.lane.trim(_IDLE_SECONDS)
                if connection.offer is not None and not self._is_admitted(connection.offer):
                    # The caller goes on, and may still read the results that it has.
                    connection.lane.close(has_left=False)
                    self._disconnect(connection)
            elif connection.until < now:
                self._disconnect(connection)

    def _is_admitted(self, offer: Offer) -> bool:
        """Return whether the call that asked for a lane would be admitted now."""
        try:
            if self._check is not None:
                self._check(offer.tenant, offer.metadata)
        except UnauthenticatedError as error:
            logs.event("lane refused", why=error.why, tenant=offer.tenant)
            return False
        return True

    def _accept(self) -> None:
        try:
            link, _ = self._listener.accept()
        except OSError:
            # The caller has disconnected, or the process has no free descriptor, in which case it must wait.
            time.sleep(_PAUSE_SECONDS)
            return
        waiting = sum(not connection.is_open for connection in self._connections)
        if peer_uid(link) not in (os.geteuid(), _ROOT) or waiting >= _MAX_UNOPENED:
            link.close()
            self._fall_back("refused")
            return
        link.setblocking(False)
        connection = _Connection(link, time.monotonic() + _OPEN_SECONDS)
        self._connections.add(connection)
        self._selector.register(link, selectors.EVENT_READ, connection)

    def _serve(self, connection: _Connection) -> None:
        """Read one packet. After the turns of other connections, the selector reports whether there are more."""
        try:
            raw = connection.link.recv(PACKET_BYTES + 1)
        except BlockingIOError:
            return
        except OSError:
            raw = b""
        if not raw or not self._handle(connection, raw):
            self._disconnect(connection)

    def _handle(self, connection: _Connection, raw: bytes) -> bool:
        """Handle a packet; False if it breaks the protocol."""
        if connection.lane is None:
            return self._make_lane(connection, unpack_hello(raw))
        packet = Packet.unpack(raw)
        match packet:
            case Packet(ToWorker.READY) if not connection.is_open:
                return self._open(connection, connection.lane)
            case Packet(ToWorker.LEASE, lease, length) if connection.is_open:
                region = connection.lane.grant(lease, length)
                return connection.lane.send(Packet(ToCaller.LEASED, lease, 0 if region is None else region.number))
            case Packet(ToWorker.RELEASE, lease) if connection.is_open:
                connection.lane.release(lease)
                return True
        return False

    def _make_lane(self, connection: _Connection, token: bytes | None) -> bool:
        """Create the lane that was offered with a token, without opening it; False if the token is not valid."""
        with self._lock:
            offer = None if token is None else self._offers.pop(token, None)
            if token is None or offer is None or offer.ends <= time.monotonic() or not self._may_open(offer.tenant):
                return False
        if not self._is_admitted(offer):
            return False
        connection.token, connection.offer = token, offer
        connection.lane = Lane(offer.tenant, connection.link, self._account, self._pinner)
        connection.region = connection.lane.show(offer.nonce)
        return connection.region is not None

    def _open(self, connection: _Connection, lane: Lane) -> bool:
        assert connection.region is not None and connection.offer is not None
        if connection.region.memory[NONCE_BYTES : 2 * NONCE_BYTES].tobytes() != connection.offer.nonce:
            return False
        connection.is_open, connection.region = True, None
        with self._lock:
            self._lanes[connection.token] = lane
        whose: dict[str, Any] = {"tenant": lane.tenant} if lane.tenant else {}
        logs.event("lane opened", lanes=len(self), **whose)
        return lane.send(Packet(ToCaller.OPEN, SINGLE_REPLIES))

    def _disconnect(self, connection: _Connection) -> None:
        self._connections.discard(connection)
        self._selector.unregister(connection.link)
        if connection.lane is not None:
            with self._lock:
                self._lanes.pop(connection.token, None)
            connection.lane.close()
        connection.link.close()
        if not connection.is_open:
            self._fall_back("refused")
