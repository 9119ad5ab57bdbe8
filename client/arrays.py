"""Numbers from anywhere (lists, NumPy, DLPack, torch, JAX) as read-only arrays on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lumigrad.client.errors import InvalidArgument

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]


def to_numpy(name: str, value: Any) -> npt.NDArray[Any]:
    """`value` as a NumPy array, without a copy where it already lives on the host.

    Tensors that require a gradient or live on a GPU are detached and copied to the host.
    """
    for method in ("detach", "cpu"):
        if hasattr(value, method):
            value = getattr(value, method)()
    try:
        if not isinstance(value, np.ndarray) and hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
            return np.from_dlpack(value)
        return np.asarray(value)
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        raise InvalidArgument.of(
            name, f"expected an array of numbers, got {type(value).__name__} ({error}); pass a NumPy array"
        ) from error


def float32_array(name: str, value: Any, shape: Sequence[int | str] | None = None) -> Float32:
    """`value` as a read-only, C-contiguous float32 array.

    Args:
        name: the argument's name, for the error message.
        value: anything `to_numpy` takes.
        shape: the sizes expected; a string stands for any size, e.g. ("N", 3). None: any shape.

    Raises:
        InvalidArgument: not numbers, or another shape.
    """
    array = to_numpy(name, value)
    if array.dtype.kind not in "fiub":
        shaped = f" of shape {_written(shape)}" if shape is not None else ""
        raise InvalidArgument.of(name, f"expected numbers{shaped}, got dtype {array.dtype}")
    if shape is not None:
        _check_shape(name, array, shape)
    result: Float32 = np.ascontiguousarray(array, dtype=np.float32).reshape(array.shape).view()
    result.flags.writeable = False
    return result


def int32_array(name: str, value: Any, shape: Sequence[int | str]) -> Int32:
    """`value` as a read-only, C-contiguous int32 array; `shape` as for `float32_array`.

    Raises:
        InvalidArgument: not whole numbers, another shape, or numbers that int32 does not hold.
    """
    array = to_numpy(name, value)
    if array.dtype.kind not in "iu" and array.size:
        raise InvalidArgument.of(
            name, f"expected whole numbers of shape {_written(shape)}, got dtype {array.dtype}; pass integers"
        )
    _check_shape(name, array, shape)
    limits = np.iinfo(np.int32)
    if array.size and not (array.min() >= limits.min and array.max() <= limits.max):
        raise InvalidArgument.of(name, f"expected numbers that int32 holds, got {array.min()} to {array.max()}")
    result: Int32 = np.ascontiguousarray(array, dtype=np.int32).reshape(array.shape).view()
    result.flags.writeable = False
    return result


def float64_array(name: str, value: Any, shape: tuple[int, ...]) -> Float64:
    """`value` as a read-only float64 array of finite numbers, for the mathematics of cameras."""
    array = to_numpy(name, value)
    if array.dtype.kind not in "fiub" or array.shape != shape or not np.isfinite(array).all():
        raise InvalidArgument.of(name, f"expected finite numbers of shape {list(shape)}, got {array.tolist()}")
    result = array.astype(np.float64)
    result.flags.writeable = False
    return result


def _check_shape(name: str, array: npt.NDArray[Any], shape: Sequence[int | str]) -> None:
    fits = array.ndim == len(shape) and all(
        isinstance(size, str) or size == actual for size, actual in zip(shape, array.shape, strict=True)
    )
    if not fits:
        raise InvalidArgument.of(name, f"expected shape {_written(shape)}, got {list(array.shape)}")


def _written(shape: Sequence[int | str]) -> str:
    return "[" + ", ".join(str(size) for size in shape) + "]"
