"""Tensors in the regions of a shared-memory lane; small ones, or all if no region is free, stay in the payload."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lumigrad.protos.dtypes import Array
from lumigrad.protos.errors import ProtocolError
from lumigrad.protos.tensors import ALIGNMENT, PayloadReader, PayloadWriter
from lumigrad.v1 import tensor_pb2

# Smaller tensors travel just as fast in the stream.
LEAST_BYTES = 256 << 10
# Estimated bytes of a header without its tensors, such as timings, and of each tensor in it, with name and shape.
_HEADER_BYTES, _TENSOR_BYTES = 2 << 10, 128
# The number of a leased region, and its memory.
LeasedRegion = tuple[int, Array]


class LaneWriter(PayloadWriter):
    """Writes each large array to a region of its own."""

    def __init__(self, lease_region: Callable[[int], LeasedRegion | None], *, most_bytes: float = math.inf) -> None:
        """`lease_region` leases a region of at least the given size; None if none is free.

        What does not fit into a message of `most_bytes`, with the header that names it, counts as large.
        """
        super().__init__()
        self._lease_region = lease_region
        self._most_bytes = most_bytes
        # A region that several arrays share, and how much of it is taken.
        self._shared: LeasedRegion | None = None
        self._shared_bytes = 0
        # Numbers of tensors that the header will name: announced, and so far.
        self._announced = self._named = 0

    def reserve(self, arrays: Sequence[Array]) -> None:
        """Lease one region for all arrays that would not get one each, if they are large together."""
        self._announced += len(arrays)
        small = [array.nbytes for array in arrays if array.nbytes < LEAST_BYTES and not self._has_place(array)]
        total = sum(map(_aligned, small))
        if total >= LEAST_BYTES or not self._fits(total):
            self._shared, self._shared_bytes = self._lease_region(total), 0

    def _has_place(self, array: Array) -> bool:
        """Whether an array lies in a region already."""
        return False

    def _place(self, array: Array, element: np.dtype[Any]) -> dict[str, Any]:
        self._named += 1
        start, stop = self._shared_bytes, self._shared_bytes + array.nbytes
        if array.nbytes < LEAST_BYTES and self._shared is not None and stop <= self._shared[1].nbytes:
            region, memory = self._shared
            np.copyto(memory[start:stop].view(element).reshape(array.shape), array)
            self.lane_bytes += array.nbytes
            self._shared_bytes = _aligned(stop)
            return {"region": tensor_pb2.RegionSpan(region=region, offset=start, length=array.nbytes)}
        is_large = array.nbytes >= LEAST_BYTES or not self._fits(array.nbytes)
        leased = self._lease_region(array.nbytes) if is_large else None
        if leased is None:
            return super()._place(array, element)
        region, memory = leased
        # Assignment to slices of memoryviews would hold the GIL during the copy.
        np.copyto(memory[: array.nbytes].view(element).reshape(array.shape), array)
        self.lane_bytes += array.nbytes
        return {"region": tensor_pb2.RegionSpan(region=region, length=array.nbytes)}

    def _fits(self, nbytes: int) -> bool:
        header = _header_bytes(max(self._announced, self._named))
        return header + self.length + ALIGNMENT + nbytes <= self._most_bytes


def small_message_bytes(sizes: Sequence[int]) -> int:
    """Return the bytes of a message with small tensors of these sizes, as `LaneWriter` estimates them."""
    return _header_bytes(len(sizes)) + ALIGNMENT + sum(map(_aligned, sizes))


def _header_bytes(tensors: int) -> int:
    return _HEADER_BYTES + _TENSOR_BYTES * tensors


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class LaneReader(PayloadReader):
    """Views tensors in a payload; `find` returns the memory of tensors in regions."""

    def __init__(self, payload: memoryview | bytes, find: Callable[[tensor_pb2.RegionSpan, str], Array]) -> None:
        super().__init__(payload)
        self._find = find

    def _region(self, span: tensor_pb2.RegionSpan, field: str) -> memoryview:
        return self._find(span, field).data


def part_of(memory: Array, span: tensor_pb2.RegionSpan, field: str) -> Array:
    """Return the bytes of a span, which must lie inside its region."""
    start, stop = span.offset, span.offset + span.length
    if stop > memory.nbytes:
        limit = f"a span inside the region of {memory.nbytes} bytes"
        raise ProtocolError(f"{field}.region", limit, f"bytes {start} to {stop}")
    return memory[start:stop]
