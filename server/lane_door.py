"""The unix socket at which callers open their lanes, and the thread that listens to all of them."""

from __future__ import annotations

import os
import secrets
import selectors
import socket
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lumigrad.protos.lanes import (
    NONCE_BYTES,
    PACKET_BYTES,
    Packet,
    ToCaller,
    ToWorker,
    address_of,
    peer_uid,
    unpack_hello,
)
from lumigrad.server import logs
from lumigrad.server.lane import Lane
from lumigrad.server.region import Region

if TYPE_CHECKING:
    from lumigrad.server.lanes import Lanes

# Callers that have not opened their lane yet, and how long that may take.
_MOST_VISITORS = 16
_VISIT_SECONDS = 5.0
_BACKLOG = 128
_IDLE_SECONDS = 30.0
_PAUSE_SECONDS = 0.05
_ROOT = 0
# The packets of one caller that are read before the next one's turn.
_PACKETS_AT_ONCE = 64


@dataclass(eq=False)
class _Visitor:
    """Somebody at the other end of a connection."""

    link: socket.socket
    until: float
    token: bytes = b""
    nonce: bytes = b""
    lane: Lane | None = None
    # The one in which both sides prove that they see the same memory.
    region: Region | None = None
    is_open: bool = False


class LaneDoor:
    """Lets in who has a token and is of the same user, or root; whoever breaks the protocol goes out again."""

    def __init__(self, lanes: Lanes) -> None:
        """Listen at a name that nobody can guess or has taken."""
        self._lanes = lanes
        self.name = f"lumigrad-{secrets.token_hex(16)}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(address_of(self.name))
        self._listener.listen(_BACKLOG)
        self._listener.setblocking(False)
        self._visitors: set[_Visitor] = set()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        threading.Thread(target=self._listen, name="lanes", daemon=True).start()

    def _listen(self) -> None:
        while True:
            for key, _ in self._selector.select(1.0 if self._visitors else None):
                if key.data is None:
                    self._welcome()
                else:
                    self._serve(key.data)
            self._keep_house()

    def _keep_house(self) -> None:
        now = time.monotonic()
        for visitor in list(self._visitors):
            if visitor.is_open and visitor.lane is not None:
                visitor.lane.trim(_IDLE_SECONDS)
            elif visitor.until < now:
                self._send_away(visitor)

    def _welcome(self) -> None:
        try:
            link, _ = self._listener.accept()
        except OSError:
            # Nobody is left there, or the process has no descriptors for another one: that one has to wait.
            time.sleep(_PAUSE_SECONDS)
            return
        waiting = sum(not visitor.is_open for visitor in self._visitors)
        if peer_uid(link) not in (os.geteuid(), _ROOT) or waiting >= _MOST_VISITORS:
            link.close()
            self._lanes.refuse()
            return
        link.setblocking(False)
        visitor = _Visitor(link, time.monotonic() + _VISIT_SECONDS)
        self._visitors.add(visitor)
        self._selector.register(link, selectors.EVENT_READ, visitor)

    def _serve(self, visitor: _Visitor) -> None:
        for _ in range(_PACKETS_AT_ONCE):
            try:
                raw = visitor.link.recv(PACKET_BYTES + 1)
            except BlockingIOError:
                return
            except OSError:
                raw = b""
            if not raw or not self._hear(visitor, raw):
                self._send_away(visitor)
                return

    def _hear(self, visitor: _Visitor, raw: bytes) -> bool:
        """Do what a packet says; False if it makes no sense."""
        if visitor.lane is None:
            return self._make_lane(visitor, unpack_hello(raw))
        packet = Packet.unpack(raw)
        match packet:
            case Packet(ToWorker.READY) if not visitor.is_open:
                return self._open(visitor, visitor.lane)
            case Packet(ToWorker.LEASE, lease, length) if visitor.is_open:
                region = visitor.lane.grant(lease, length)
                return visitor.lane.send(Packet(ToCaller.LEASED, lease, 0 if region is None else region.number))
            case Packet(ToWorker.RELEASE, lease) if visitor.is_open:
                visitor.lane.release(lease)
                return True
        return False

    def _make_lane(self, visitor: _Visitor, token: bytes | None) -> bool:
        offer = self._lanes.accept(token) if token is not None else None
        if token is None or offer is None:
            return False
        visitor.token, visitor.nonce = token, offer.nonce
        visitor.lane = self._lanes.make(offer, visitor.link)
        visitor.region = visitor.lane.show(offer.nonce)
        return visitor.region is not None

    def _open(self, visitor: _Visitor, lane: Lane) -> bool:
        assert visitor.region is not None
        if visitor.region.memory[NONCE_BYTES : 2 * NONCE_BYTES].tobytes() != visitor.nonce:
            return False
        visitor.is_open, visitor.region = True, None
        self._lanes.open(visitor.token, lane)
        whose: dict[str, Any] = {"tenant": lane.tenant} if lane.tenant else {}
        logs.event("lane opened", lanes=len(self._lanes), **whose)
        return lane.send(Packet(ToCaller.OPEN))

    def _send_away(self, visitor: _Visitor) -> None:
        self._visitors.discard(visitor)
        self._selector.unregister(visitor.link)
        if visitor.lane is not None:
            self._lanes.close(visitor.token, visitor.lane)
        visitor.link.close()
        if not visitor.is_open:
            self._lanes.refuse()
