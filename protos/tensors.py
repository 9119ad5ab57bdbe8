"""Arrays <-> Tensor messages: a writer that lays arrays out in a payload, a reader that views them in one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from lumigrad.protos import dtypes
from lumigrad.protos.dtypes import Array
from lumigrad.protos.errors import ProtocolError
from lumigrad.v1 import tensor_pb2

# Tensors start at multiples of this, so that a reader can view them in place with any instruction set.
ALIGNMENT = 64
_MAX_DIMENSIONS = 32
# Indices within a dimension have 32 bits somewhere.
_MAX_SIZE = (1 << 31) - 1
# Bytes that one machine can address. Kernels compute strides, which a zero among the sizes does not make smaller.
_MAX_BYTES = 1 << 47


def extent(shape: Sequence[int]) -> int:
    """Return the product of all sizes, with zeros counted as ones, in Python integers, which do not overflow.

    Limits apply to the extent, because a tensor without elements may still be [2**40, 0, 3].
    """
    return math.prod(max(1, size) for size in shape)


def nbytes(tensor: tensor_pb2.Tensor, field: str) -> int:
    """Return the bytes that dtype and shape need; raises ProtocolError for an impossible shape."""
    return _nbytes(dtypes.to_numpy(tensor.dtype, field).itemsize, tuple(tensor.shape), field)


def _nbytes(itemsize: int, shape: tuple[int, ...], field: str) -> int:
    if len(shape) > _MAX_DIMENSIONS:
        raise ProtocolError(f"{field}.shape", f"at most {_MAX_DIMENSIONS} sizes", len(shape))
    if shape and not 0 <= min(shape) <= max(shape) <= _MAX_SIZE:
        raise ProtocolError(f"{field}.shape", f"sizes of 0 to {_MAX_SIZE}", list(shape))
    # A tensor without elements is checked by its extent.
    count = math.prod(shape)
    if itemsize * (count or extent(shape)) > _MAX_BYTES:
        raise ProtocolError(f"{field}.shape", f"at most {_MAX_BYTES} bytes in all", list(shape))
    return itemsize * count


def rows_of(tensor: tensor_pb2.Tensor, start: int, stop: int) -> tensor_pb2.Tensor:
    """Return the rows `start` to `stop` of a tensor in a payload or a region, as a tensor in the same place."""
    rows = tensor_pb2.Tensor(dtype=tensor.dtype, shape=[stop - start, *tensor.shape[1:]])
    row_bytes = dtypes.to_numpy(tensor.dtype, "dtype").itemsize * math.prod(tensor.shape[1:])
    where = tensor.WhichOneof("location")
    if where == "payload":
        rows.payload.offset, rows.payload.length = tensor.payload.offset + start * row_bytes, nbytes(rows, "rows")
    elif where == "region":
        rows.region.CopyFrom(tensor.region)
        rows.region.offset, rows.region.length = tensor.region.offset + start * row_bytes, nbytes(rows, "rows")
    return rows


class PayloadWriter:
    """Collects arrays and names the place of each in the payload. Keeps views, so leave the arrays alone."""

    # Bytes of tensors outside the payload.
    lane_bytes = 0

    def __init__(self) -> None:
        # Bytes of payload so far, and the payload, in order, padding included.
        self.length = 0
        self.buffers: list[memoryview] = []
        # The end of the payload, read as it is sent: it may be larger than memory.
        self.later: Iterable[memoryview] = ()

    def add(self, array: Array, dtype: tensor_pb2.DType | None = None) -> tensor_pb2.Tensor:
        """Append one array; copied only if it is not in C order or not little-endian.

        Pass `dtype` for bfloat16, whose bits are given as uint16.
        """
        number = dtypes.from_numpy(array.dtype) if dtype is None else dtype
        element = dtypes.to_numpy(number, "dtype")
        if dtype is not None and array.dtype.newbyteorder("<") != element:
            raise ProtocolError("dtype", f"an array of {element} for {dtypes.name(number)}", array.dtype)
        return tensor_pb2.Tensor(dtype=number, shape=array.shape, **self._place(array, element))

    def add_to_payload(self, array: Array) -> tensor_pb2.Tensor:
        """Append one array as `add` does, but always to the payload."""
        number = dtypes.from_numpy(array.dtype)
        place = PayloadWriter._place(self, array, dtypes.to_numpy(number, "dtype"))
        return tensor_pb2.Tensor(dtype=number, shape=array.shape, **place)

    def end_with(self, pieces: Iterable[memoryview], nbytes: int) -> None:
        """Append `nbytes` aligned bytes, whose pieces are drawn when they are sent; nothing can follow."""
        self._align()
        self.later = pieces
        self.length += nbytes

    def reserve(self, arrays: Sequence[Array]) -> None:
        """Announce arrays that `add` will get; outside the payload, all small ones share one place."""

    def _place(self, array: Array, element: np.dtype[Any]) -> dict[str, Any]:
        """Put the bytes somewhere; returns where, as a field of `Tensor`."""
        self._align()
        span = tensor_pb2.Span(offset=self.length, length=array.nbytes)
        self._append(np.ascontiguousarray(array, dtype=element).reshape(-1).view(np.uint8).data)
        return {"payload": span}

    def _align(self) -> None:
        if gap := -self.length % ALIGNMENT:
            self._append(memoryview(bytes(gap)))

    def _append(self, buffer: memoryview) -> None:
        if buffer.nbytes:
            self.buffers.append(buffer)
            self.length += buffer.nbytes


class PayloadReader:
    """Views the tensors of one stream in its payload."""

    def __init__(self, payload: memoryview | bytes = b"") -> None:
        """Read from `payload`, which must outlive the arrays; it may be empty if all tensors are inline."""
        self._payload = memoryview(payload)

    def read(self, tensor: tensor_pb2.Tensor, field: str) -> Array:
        """Return the array, without a copy if its place is aligned; bfloat16 as uint16 bits.

        `field` names the tensor in errors. The array may be read-only.
        """
        element = dtypes.to_numpy(tensor.dtype, field)
        shape = tuple(tensor.shape)
        expected = _nbytes(element.itemsize, shape, field)
        source = self._bytes(tensor, field)
        if source.nbytes != expected:
            size = "x".join(map(str, shape)) or "scalar"
            limit = f"{expected} bytes for {dtypes.name(tensor.dtype)} {size}"
            raise ProtocolError(field, limit, f"{source.nbytes} bytes")
        if not expected:
            return np.empty(shape, element)
        array = np.frombuffer(source, element)
        if tensor.dtype == dtypes.BOOL and (largest := array.view(np.uint8).max()) > 1:
            raise ProtocolError(field, "booleans stored as 0 or 1", int(largest))
        return (array if array.flags.aligned else array.copy()).reshape(shape)

    def read_in_place(self, tensor: tensor_pb2.Tensor, field: str) -> Array:
        """Reads as `read` does, but without a copy; the sender may change the bytes meanwhile."""
        return self.read(tensor, field)

    def _bytes(self, tensor: tensor_pb2.Tensor, field: str) -> memoryview:
        match tensor.WhichOneof("location"):
            case "inline":
                return memoryview(tensor.inline)
            case "payload":
                start, stop = tensor.payload.offset, tensor.payload.offset + tensor.payload.length
                if stop > self._payload.nbytes:
                    limit = f"a span inside the payload of {self._payload.nbytes} bytes"
                    raise ProtocolError(f"{field}.payload", limit, f"bytes {start} to {stop}")
                return self._payload[start:stop]
            case "region":
                return self._region(tensor.region, field)
            case _ if nbytes(tensor, field) == 0:
                return memoryview(b"")
            case _:
                raise ProtocolError(field, "inline bytes or a payload span", "neither")

    def _region(self, span: tensor_pb2.RegionSpan, field: str) -> memoryview:
        raise ProtocolError(field, "inline bytes or a payload span, for the call names no lane", "a region span")
