"""Reads and writes a call's tensors through its lane."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lumigrad.protos.dtypes import Array
from lumigrad.protos.errors import ProtocolError
from lumigrad.protos.lane_tensors import LEAST_BYTES, LaneReader, LaneWriter, LeasedRegion, part_of
from lumigrad.protos.tensors import PayloadReader, PayloadWriter
from lumigrad.server.core.call import Allocate, NoLane
from lumigrad.server.core.errors import InvalidArgumentError, LaneLostError
from lumigrad.server.core.record import StageTimes
from lumigrad.server.shm.lane import Lane, Lease, Region
from lumigrad.v1 import tensor_pb2


class LostLane(NoLane):
    """Stands for a lane that a call names but that is not open to the caller."""

    def check_room(self, nbytes: int) -> None:
        """Raise LaneLostError."""
        raise LaneLostError

    def reader(self, payload: memoryview, limit_bytes: int, allocate: Allocate) -> PayloadReader:
        """Create a reader that raises LaneLostError for tensors outside the payload."""
        return LaneReader(payload, _lost)


def _lost(span: tensor_pb2.RegionSpan, field: str) -> Array:
    raise LaneLostError


class OpenLane(NoLane):
    """The open lane of a call."""

    def __init__(self, lane: Lane, lease: Lease, times: StageTimes, on_fallback: Callable[[str], None]) -> None:
        """`on_fallback` is called with the reason when a large tensor must travel in the stream."""
        self._lane = lane
        self._lease = lease
        self._times = times
        self._on_fallback = on_fallback
        # The regions of arrays from `allocate`, by the arrays' addresses.
        self._made: dict[int, Region] = {}
        # Regions that were read in place, and their leases at that time.
        self._read: list[tuple[Region, Lease]] = []

    def writer(self, most_bytes: float = math.inf) -> PayloadWriter:
        """Create a writer that leases a region for each large tensor that is not in one."""
        return _ReplyWriter(self._leased, self._made_in, self._note_sent, self._times, most_bytes=most_bytes)

    def check_room(self, nbytes: int) -> None:
        """Raise LaneLostError if the lane has no room for `nbytes`."""
        if not self._lane.has_room(nbytes):
            self._on_fallback("full")
            raise LaneLostError

    def allocate(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Array | None:
        """Allocate an array in a region for the device; None if the array is small or there is no room."""
        nbytes = dtype.itemsize * math.prod(shape)
        region = self._for_device(nbytes)
        if region is None:
            return None
        self._made[region.memory.ctypes.data] = region
        return region.memory[:nbytes].view(dtype).reshape(shape)

    def lease(self, nbytes: int) -> LeasedRegion | None:
        """Lease a region for the device; None if `nbytes` is small enough for the stream, or there is no room."""
        region = self._for_device(nbytes)
        return None if region is None else (region.number, region.memory)

    def reader(self, payload: memoryview, limit_bytes: int, allocate: Allocate) -> PayloadReader:
        """Create a reader that copies tensors from the caller's regions."""
        return _UploadReader(payload, self, limit_bytes, allocate)

    def find(self, span: tensor_pb2.RegionSpan, field: str) -> tuple[Array, Region, Lease]:
        """Return the memory of a span, its region and lease; raises ProtocolError if the caller does not hold it."""
        found = self._lane.leased(span.region)
        if found is None:
            raise ProtocolError(f"{field}.region", "a region that the caller has leased", span.region)
        region, lease = found
        return part_of(region.memory, span, field), region, lease

    def find_in_place(self, span: tensor_pb2.RegionSpan, field: str) -> Array:
        """Return the memory of a span for reading in place; `check_held` checks its lease afterwards."""
        memory, region, lease = self.find(span, field)
        self._read.append((region, lease))
        self.bytes_received += memory.nbytes
        return memory

    def check_held(self) -> None:
        """Raise LaneLostError if the lease of memory that was read in place has ended, since it may have changed."""
        if any(region.lease is not lease for region, lease in self._read):
            raise LaneLostError

    def end(self, *, delivered: bool) -> None:
        """Release the regions that the caller will not read."""
        # Drop references, so that memory is unmapped without the garbage collector.
        self._made.clear()
        self._read.clear()
        self._lane.end(self._lease, delivered=delivered)

    def _for_device(self, nbytes: int) -> Region | None:
        return self._lane.lease_region(self._lease, nbytes, for_device=True) if nbytes >= LEAST_BYTES else None

    def _made_in(self, array: Array) -> Region | None:
        return self._made.get(array.ctypes.data)

    def _leased(self, nbytes: int) -> LeasedRegion | None:
        region = self._lane.lease_region(self._lease, nbytes)
        if region is None:
            self._on_fallback("full")
            return None
        return region.number, region.memory

    def _note_sent(self, nbytes: int) -> None:
        self.bytes_sent += nbytes


class _ReplyWriter(LaneWriter):
    """Copies tensors that are not yet in a region, and measures the time."""

    def __init__(
        self,
        lease_region: Callable[[int], LeasedRegion | None],
        made_in: Callable[[Array], Region | None],
        on_sent: Callable[[int], None],
        times: StageTimes,
        *,
        most_bytes: float,
    ) -> None:
        super().__init__(lease_region, most_bytes=most_bytes)
        self._made_in = made_in
        self._on_sent = on_sent
        self._times = times

    def _has_place(self, array: Array) -> bool:
        return self._made_in(array) is not None

    def _place(self, array: Array, element: np.dtype[Any]) -> dict[str, Any]:
        region = self._made_in(array)
        if region is None:
            with self._times.stage("encode"):
                place = super()._place(array, element)
        else:
            self.lane_bytes += array.nbytes
            place = {"region": tensor_pb2.RegionSpan(region=region.number, length=array.nbytes)}
        if "region" in place:
            self._on_sent(array.nbytes)
        return place


class _UploadReader(PayloadReader):
    """Copies each span once and reads only the copy, because the caller can write while the worker reads."""

    def __init__(self, payload: memoryview, lane: OpenLane, limit_bytes: int, allocate: Allocate) -> None:
        super().__init__(payload)
        self._in_place = LaneReader(payload, lane.find_in_place)
        self._lane = lane
        self._left_bytes = self._limit_bytes = limit_bytes
        self._allocate = allocate
        self._copies: dict[tuple[int, int, int], Array] = {}

    def read_in_place(self, tensor: tensor_pb2.Tensor, field: str) -> Array:
        """Read a tensor without copying; the caller may change it meanwhile."""
        return self._in_place.read(tensor, field)

    def _region(self, span: tensor_pb2.RegionSpan, field: str) -> memoryview:
        place = span.region, span.offset, span.length
        copy = self._copies.get(place)
        if copy is None:
            copy = self._copies[place] = self._copy(span, field)
        return copy.data

    def _copy(self, span: tensor_pb2.RegionSpan, field: str) -> Array:
        memory, region, lease = self._lane.find(span, field)
        if memory.nbytes > self._left_bytes:
            limit = f"at most {self._limit_bytes} bytes in regions (the worker's --max-payload-mib)"
            raise InvalidArgumentError(field, limit, "more")
        self._left_bytes -= memory.nbytes
        copy = np.frombuffer(self._allocate(memory.nbytes), np.uint8)
        np.copyto(copy, memory)
        # Another call may have written to the region if the caller released it during the copy.
        if region.lease is not lease:
            raise LaneLostError
        self._lane.bytes_received += memory.nbytes
        return copy
