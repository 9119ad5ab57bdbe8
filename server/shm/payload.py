"""What a call sends and receives, by the lane that it names or by none."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lumigrad.protos.dtypes import Array
from lumigrad.protos.errors import ProtocolError
from lumigrad.protos.lane_tensors import LEAST_BYTES, LaneReader, LaneWriter, Room, part_of
from lumigrad.protos.tensors import PayloadReader, PayloadWriter
from lumigrad.server.core.call import Allocate, NoLane
from lumigrad.server.core.errors import InvalidArgumentError, LaneLostError
from lumigrad.server.core.timings import StageTimes
from lumigrad.server.shm.lane import Lane, Lease, Region
from lumigrad.v1 import tensor_pb2


class LostLane(NoLane):
    """Of a call that names one which is not open to the caller."""

    def reader(self, payload: memoryview, limit_bytes: int, allocate: Allocate) -> PayloadReader:
        """Finds nothing outside of the payload."""
        return LaneReader(payload, _lost)


def _lost(span: tensor_pb2.RegionSpan, field: str) -> Array:
    raise LaneLostError


class OpenLane(NoLane):
    """Of a call that names one which is open."""

    def __init__(self, lane: Lane, lease: Lease, times: StageTimes, on_fallback: Callable[[str], None]) -> None:
        """`on_fallback` hears why a tensor that is large enough travels with the stream."""
        self._lane = lane
        self._lease = lease
        self._times = times
        self._on_fallback = on_fallback
        # Regions in which arrays of the reply are made, by the addresses of these.
        self._made: dict[int, Region] = {}

    def writer(self) -> PayloadWriter:
        """Leases a region for each large tensor that was not made in one."""
        return _ReplyWriter(self._leased, self._made_in, self._times)

    def room(self, shape: Sequence[int]) -> Array | None:
        """A region for one array, if it is worth one."""
        nbytes = np.dtype(np.float32).itemsize * math.prod(shape)
        region = self._lane.room(self._lease, nbytes) if nbytes >= LEAST_BYTES else None
        if region is None:
            return None
        self._made[region.memory.ctypes.data] = region
        return region.memory[:nbytes].view(np.float32).reshape(shape)

    def reader(self, payload: memoryview, limit_bytes: int, allocate: Allocate) -> PayloadReader:
        """Copies tensors out of the regions that the caller has leased."""
        return _UploadReader(payload, self, limit_bytes, allocate)

    def find(self, span: tensor_pb2.RegionSpan, field: str) -> tuple[Array, Region, Lease]:
        """A span of what the caller holds of its lane, and in which lease."""
        found = self._lane.leased(span.region)
        if found is None:
            raise ProtocolError(f"{field}.region", "a region that the caller has leased", span.region)
        region, lease = found
        return part_of(region.memory, span, field), region, lease

    def end(self, *, delivered: bool) -> None:
        """Take back what the caller will not read."""
        # Nothing must wait for the garbage collector to be unmapped.
        self._made.clear()
        self._lane.end(self._lease, delivered=delivered)

    def _made_in(self, array: Array) -> Region | None:
        region = self._made.get(array.ctypes.data)
        if region is not None:
            self.bytes_sent += array.nbytes
        return region

    def _leased(self, nbytes: int) -> Room | None:
        region = self._lane.room(self._lease, nbytes)
        if region is None:
            self._on_fallback("full")
            return None
        self.bytes_sent += nbytes
        return region.number, region.memory


class _ReplyWriter(LaneWriter):
    """Says how long the copies take, of what is not in a region already."""

    def __init__(
        self, room: Callable[[int], Room | None], made_in: Callable[[Array], Region | None], times: StageTimes
    ) -> None:
        super().__init__(room)
        self._made_in = made_in
        self._times = times

    def _place(self, array: Array, element: np.dtype[Any]) -> dict[str, Any]:
        region = self._made_in(array)
        if region is not None:
            self.lane_bytes += array.nbytes
            return {"region": tensor_pb2.RegionSpan(region=region.number, length=array.nbytes)}
        with self._times.stage("encode"):
            return super()._place(array, element)


class _UploadReader(LaneReader):
    """The caller can write on while the worker reads: each span is copied, once, and only the copy is looked at."""

    def __init__(self, payload: memoryview, lane: OpenLane, limit_bytes: int, allocate: Allocate) -> None:
        super().__init__(payload, self._copied)
        self._in_place = LaneReader(payload, self._found)
        self._lane = lane
        self._left_bytes = self._limit_bytes = limit_bytes
        self._allocate = allocate
        self._copies: dict[tuple[int, int, int], Array] = {}

    def read_in_place(self, tensor: tensor_pb2.Tensor, field: str) -> Array:
        """The caller's memory itself."""
        return self._in_place.read(tensor, field)

    def _found(self, span: tensor_pb2.RegionSpan, field: str) -> Array:
        memory, _, _ = self._lane.find(span, field)
        self._lane.bytes_received += memory.nbytes
        return memory

    def _copied(self, span: tensor_pb2.RegionSpan, field: str) -> Array:
        place = span.region, span.offset, span.length
        copy = self._copies.get(place)
        if copy is None:
            copy = self._copies[place] = self._copy(span, field)
        return copy

    def _copy(self, span: tensor_pb2.RegionSpan, field: str) -> Array:
        memory, region, lease = self._lane.find(span, field)
        if memory.nbytes > self._left_bytes:
            raise InvalidArgumentError(field, f"at most {self._limit_bytes} bytes in regions", "more")
        self._left_bytes -= memory.nbytes
        copy = np.frombuffer(self._allocate(memory.nbytes), np.uint8)
        np.copyto(copy, memory)
        # Whoever lets go of a region while it is read would send what the next call writes there.
        if region.lease is not lease:
            raise LaneLostError
        self._lane.bytes_received += memory.nbytes
        return copy
