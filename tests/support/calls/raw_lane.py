"""A client of shared-memory lanes with which tests can violate the protocol."""

from __future__ import annotations

import mmap
import os
import socket
from typing import Any

import numpy as np

from lumigrad.protos.lane_tensors import LaneReader, part_of
from lumigrad.protos.lanes import PACKET_BYTES, Packet, ToCaller, ToWorker, address_of, lane_metadata, pack_hello
from lumigrad.v1 import tensor_pb2, worker_pb2
from support.calls.raw_calls import Array, RawClient, collected

SECONDS = 60.0


def offer_of(client: RawClient) -> worker_pb2.OpenLaneReply:
    """The worker's reply to OpenLane."""
    return client.worker_stub.OpenLane(worker_pb2.OpenLaneRequest(), timeout=SECONDS)


def connect(offer: worker_pb2.OpenLaneReply) -> socket.socket:
    """A connection to the worker's lane socket."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link.settimeout(SECONDS)
    link.connect(address_of(offer.socket))
    return link


def is_closed(link: socket.socket) -> bool:
    """Whether the other side closes the connection; data before that is ignored."""
    try:
        while link.recv(PACKET_BYTES):
            pass
    except ConnectionError:
        pass
    return True


class RawLane:
    """One lane; `descriptors` are the file descriptors of its regions, in the order received."""

    def __init__(self, client: RawClient) -> None:
        """Open the lane."""
        self.offer = offer_of(client)
        self.link = connect(self.offer)
        self.regions: dict[int, Array] = {}
        self.descriptors: dict[int, int] = {}
        self.dropped: list[int] = []
        self.link.send(pack_hello(self.offer.token))
        region = self.expect(ToCaller.REGION).first
        nonce = self.offer.nonce
        assert self.regions[region][: len(nonce)].tobytes() == nonce
        self.regions[region][len(nonce) : 2 * len(nonce)] = np.frombuffer(nonce, np.uint8)
        self.send(ToWorker.READY)
        self.expect(ToCaller.OPEN)

    def __enter__(self) -> RawLane:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, kind: int, first: int = 0, second: int = 0) -> None:
        """Send a packet."""
        self.link.send(Packet(kind, first, second).pack())

    def expect(self, kind: ToCaller) -> Packet:
        """The next packet of a kind; handles packets about regions before it."""
        while True:
            raw, descriptors, _, _ = socket.recv_fds(self.link, PACKET_BYTES, 1)
            packet = Packet.unpack(raw)
            assert packet is not None, raw
            if packet.kind == ToCaller.REGION:
                (self.descriptors[packet.first],) = descriptors
                self.regions[packet.first] = np.frombuffer(mmap.mmap(descriptors[0], packet.second), np.uint8)
            if packet.kind == ToCaller.DROP:
                del self.regions[packet.first]
                os.close(self.descriptors.pop(packet.first))
                self.dropped.append(packet.first)
            if packet.kind == kind:
                return packet

    def lease(self, lease: int, length: int) -> int:
        """Lease a region for an upload; returns its number, 0 if none is free."""
        self.send(ToWorker.LEASE, lease, length)
        answer = self.expect(ToCaller.LEASED)
        assert answer.first == lease
        return answer.second

    def release(self, lease: int) -> None:
        """Release a lease, and wait until the worker has processed that."""
        self.send(ToWorker.RELEASE, lease)
        self.lease((1 << 64) - 1, 0)

    def metadata(self, lease: int) -> tuple[tuple[str, str], ...]:
        """The metadata of a call whose reply uses a lease."""
        return (lane_metadata(self.offer.token, lease),)

    def place(self, array: Array, lease: int) -> tensor_pb2.Tensor:
        """A tensor in a region of its own."""
        region = self.lease(lease, array.nbytes)
        assert region
        self.regions[region][: array.nbytes] = array.reshape(-1).view(np.uint8)
        number = {"f": tensor_pb2.DTYPE_FLOAT32, "i": tensor_pb2.DTYPE_INT32}[array.dtype.kind]
        span = tensor_pb2.RegionSpan(region=region, length=array.nbytes)
        return tensor_pb2.Tensor(dtype=number, shape=array.shape, region=span)

    def arrays(self, frames: Any) -> dict[str, Array]:
        """Copies of the tensors of a reply, by name."""
        header, reader, _, _ = collected(frames)
        in_lane = LaneReader(reader._payload, self._find)
        entries = header.gradients if hasattr(header, "gradients") else header.outputs
        return {entry.name: in_lane.read(entry.tensor, entry.name).copy() for entry in entries}

    def _find(self, span: tensor_pb2.RegionSpan, field: str) -> Array:
        while span.region not in self.regions:
            self.expect(ToCaller.REGION)
        return part_of(self.regions[span.region], span, field)

    def close(self) -> None:
        """Close the connection."""
        self.link.close()
        for descriptor in self.descriptors.values():
            os.close(descriptor)
        self.descriptors.clear()
