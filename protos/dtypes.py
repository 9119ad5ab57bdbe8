"""Element types: DType <-> numpy, and the two 16-bit float formats <-> float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lumigrad.protos.errors import ProtocolError
from lumigrad.v1 import tensor_pb2

Array = npt.NDArray[Any]

FLOAT32 = tensor_pb2.DTYPE_FLOAT32
FLOAT16 = tensor_pb2.DTYPE_FLOAT16
BFLOAT16 = tensor_pb2.DTYPE_BFLOAT16
UINT8 = tensor_pb2.DTYPE_UINT8
INT32 = tensor_pb2.DTYPE_INT32
INT64 = tensor_pb2.DTYPE_INT64
BOOL = tensor_pb2.DTYPE_BOOL

# numpy has no bfloat16: its bits travel as uint16.
_NUMPY: dict[tensor_pb2.DType, np.dtype[Any]] = {
    FLOAT32: np.dtype("<f4"),
    FLOAT16: np.dtype("<f2"),
    BFLOAT16: np.dtype("<u2"),
    UINT8: np.dtype("u1"),
    INT32: np.dtype("<i4"),
    INT64: np.dtype("<i8"),
    BOOL: np.dtype("?"),
}
_FROM_NUMPY = {dtype: number for number, dtype in _NUMPY.items() if number != BFLOAT16}


def to_numpy(dtype: tensor_pb2.DType, field: str) -> np.dtype[Any]:
    """Return the numpy type that holds `dtype`; bfloat16 is held as uint16 bits."""
    try:
        return _NUMPY[dtype]
    except KeyError:
        raise ProtocolError(f"{field}.dtype", "a known DType", name(dtype)) from None


def from_numpy(dtype: np.dtype[Any]) -> tensor_pb2.DType:
    """Return the DType of a numpy type."""
    number = _FROM_NUMPY.get(dtype) or _FROM_NUMPY.get(dtype.newbyteorder("<"))
    if number is None:
        known = ", ".join(sorted(str(known) for known in _FROM_NUMPY))
        raise ProtocolError("dtype", f"one of {known}", dtype)
    return number


def name(dtype: tensor_pb2.DType) -> str:
    """Return a name such as "DTYPE_FLOAT32", or the bare number if it is unknown."""
    value = tensor_pb2.DType.DESCRIPTOR.values_by_number.get(dtype)
    return str(dtype) if value is None else str(value.name)


def float32_to_bfloat16(values: Array) -> npt.NDArray[np.uint16]:
    """Round float32 to the nearest bfloat16, ties to even; NaN stays NaN. Returns the bits."""
    bits: npt.NDArray[np.uint32] = np.asarray(values, dtype="<f4", order="C").view("<u4")
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    # The carry could turn a NaN into an infinity: keep its upper half and make it quiet.
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    result: npt.NDArray[np.uint16] = np.where(nan, (bits >> np.uint32(16)) | np.uint32(0x40), rounded).astype("<u2")
    return result


def bfloat16_to_float32(bits: Array) -> npt.NDArray[np.float32]:
    """Return the exact float32 values of bfloat16 bits (uint16)."""
    values: npt.NDArray[np.float32] = (bits.astype("<u4") << np.uint32(16)).view("<f4")
    return values


def to_float32(values: Array, dtype: tensor_pb2.DType) -> npt.NDArray[np.float32]:
    """Widen an array of a float DType, as `TensorReader.read` returns it; float32 is not copied."""
    if dtype == BFLOAT16:
        return bfloat16_to_float32(values)
    return values.astype("<f4", copy=False)
