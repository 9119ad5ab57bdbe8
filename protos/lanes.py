"""The protocol of a shared-memory lane, see `WorkerService.OpenLane`: packets, and names."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from enum import IntEnum

# The metadata by which a call names its lane and its lease.
LANE_METADATA = "lumigrad-lane"
TOKEN_BYTES = 16
NONCE_BYTES = 16
_PACKET = struct.Struct("<BQQ")
_HELLO = struct.Struct("<B16s")
PACKET_BYTES = _PACKET.size


class ToWorker(IntEnum):
    """Kinds of packets that callers send."""

    HELLO = 1
    READY = 2
    LEASE = 3
    RELEASE = 4


# The first number of OPEN: calls that name the lane may ask for a single reply. Earlier workers send 0.
SINGLE_REPLIES = 1


class ToCaller(IntEnum):
    """Kinds of packets that workers send."""

    REGION = 1
    OPEN = 2
    DROP = 3
    LEASED = 4


@dataclass(frozen=True, slots=True)
class Packet:
    """Packet of a kind and two numbers, whose meaning depends on the kind."""

    kind: int
    first: int = 0
    second: int = 0

    def pack(self) -> bytes:
        """Encodes the packet for the socket."""
        return _PACKET.pack(self.kind, self.first, self.second)

    @staticmethod
    def unpack(raw: bytes) -> Packet | None:
        """Decodes a packet; None if `raw` is not one."""
        return Packet(*_PACKET.unpack(raw)) if len(raw) == PACKET_BYTES else None


def pack_hello(token: bytes) -> bytes:
    """Return the packet with which a caller begins."""
    return _HELLO.pack(ToWorker.HELLO, token)


def unpack_hello(raw: bytes) -> bytes | None:
    """Return the token in a caller's first packet; None if it is no hello."""
    if len(raw) != PACKET_BYTES or raw[0] != ToWorker.HELLO:
        return None
    return raw[1:]


def lane_metadata(token: bytes, lease: int) -> tuple[str, str]:
    """Return the metadata of a call."""
    return LANE_METADATA, f"{token.hex()}:{lease}"


def address_of(name: str) -> str:
    """Return the address of a socket with a name in the abstract namespace."""
    return f"\0{name}"


def peer_uid(connection: socket.socket) -> int:
    """Return the user of the process at the other end, reported by the operating system."""
    form = struct.Struct("3i")
    _, uid, _ = form.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, form.size))
    return int(uid)
