"""Checks callers' arrays and converts them to NumPy; base classes of values and results that hold arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from lumigrad.client.errors import InvalidArgument

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]

_LONGEST_REASON = 300
# Larger arrays are not shown in error messages.
_MOST_SHOWN = 16


# DLPack device types with host-readable memory: CPU, CUDA pinned and managed memory, ROCm pinned memory.
_HOST_DEVICES = (1, 3, 11, 13)


def to_numpy(name: str, value: Any) -> npt.NDArray[Any]:
    """Converts `value` to a NumPy array, without a copy if it is already on the host.

    Tensors that require a gradient are detached, and those on a GPU are copied to the host. bfloat16 values, which
    NumPy does not support, become float32. Arrays with masked values are refused: their data there means nothing.
    """
    # NumPy's extension types, such as bfloat16, have the kind V.
    if type(value) is np.ndarray and value.dtype.kind != "V":
        return value
    try:
        return np.asarray(_from_elsewhere(name, value))
    except InvalidArgument:
        raise
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        # Error messages of array libraries can be long.
        reason = " ".join(str(error).split())[:_LONGEST_REASON]
        raise InvalidArgument.of(
            name, f"expected an array of numbers, got {type(value).__name__} ({reason}); pass a NumPy array"
        ) from error


def refuse_masks(name: str, value: Any) -> None:
    """Raises InvalidArgument for NumPy arrays with masked values, also in lists of any depth.

    Conversions of arrays drop the masks.
    """
    if isinstance(value, list | tuple):
        for part in value:
            if not isinstance(part, float | int | np.generic):
                refuse_masks(name, part)
    # The attribute is looked up first, since importing numpy.ma takes time.
    elif isinstance(value, np.ndarray) and hasattr(value, "mask") and np.ma.is_masked(value):
        text = f"expected values everywhere, got an array with {np.count_nonzero(value.mask)} of {value.size} masked"
        raise InvalidArgument.of(name, f"{text}; pass array.filled(number)")


def _from_elsewhere(name: str, value: Any) -> Any:
    """Converts arrays of other libraries for NumPy, without a copy if possible; returns other values unchanged."""
    refuse_masks(name, value)
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
        return _without_bfloat16(value)
    for method in ("detach", "cpu"):
        if hasattr(value, method):
            value = getattr(value, method)()
    value = _without_bfloat16(value)
    # JAX copies device arrays to the host itself, and its tracers raise descriptive errors.
    if hasattr(value, "__dlpack_device__") and not type(value).__module__.startswith("jax"):
        device = value.__dlpack_device__()
        if device[0] not in _HOST_DEVICES:
            # CuPy copies to the host only through `get`.
            if not hasattr(value, "get"):
                raise InvalidArgument.of(
                    name,
                    f"expected an array on the host, got {type(value).__name__} on DLPack device "
                    f"{int(device[0])}:{int(device[1])}; copy it to the host first",
                )
            value = value.get()
    return value if hasattr(value, "__array__") else np.from_dlpack(value)


def _without_bfloat16(value: Any) -> Any:
    if not str(getattr(value, "dtype", "")).endswith("bfloat16"):
        return value
    return value.float() if hasattr(value, "float") else value.astype(np.float32)


def float32_array(name: str, value: Any, shape: Sequence[int | str] | None = None) -> Float32:
    """Converts `value` to a read-only, C-contiguous float32 array.

    Args:
        name: the argument's name, for the error message.
        value: anything that `to_numpy` accepts.
        shape: the expected sizes; a string stands for any size, e.g. ("N", 3). None: any shape.

    Raises:
        InvalidArgument: these are not numbers, or the shape is wrong.
    """
    array = to_numpy(name, value)
    if array.dtype.kind not in "fiub":
        shaped = f" of shape {shape_text(shape)}" if shape is not None else ""
        got = f"dtype {array.dtype}" if array.ndim else type(array.item()).__name__
        raise InvalidArgument.of(name, f"expected numbers{shaped}, got {got}")
    if shape is not None:
        check_shape(name, array.shape, shape)
    # Numbers beyond float32 become infinite, which is refused where it matters.
    with np.errstate(over="ignore"):
        result: Float32 = np.ascontiguousarray(array, dtype=np.float32).reshape(array.shape).view()
    result.flags.writeable = False
    return result


def int32_array(name: str, value: Any, shape: Sequence[int | str]) -> Int32:
    """Converts `value` to a read-only, C-contiguous int32 array; `shape` as for `float32_array`.

    Raises:
        InvalidArgument: these are not whole numbers in the range of int32, or the shape is wrong.
    """
    array = to_numpy(name, value)
    if array.dtype.kind not in "iu" and array.size:
        raise InvalidArgument.of(
            name, f"expected whole numbers of shape {shape_text(shape)}, got dtype {array.dtype}; pass integers"
        )
    check_shape(name, array.shape, shape)
    limits = np.iinfo(np.int32)
    if array.size and not (array.min() >= limits.min and array.max() <= limits.max):
        raise InvalidArgument.of(name, f"expected numbers that int32 holds, got {array.min()} to {array.max()}")
    result: Int32 = np.ascontiguousarray(array, dtype=np.int32).reshape(array.shape).view()
    result.flags.writeable = False
    return result


def float64_array(name: str, value: Any, shape: tuple[int, ...]) -> Float64:
    """Converts `value` to a read-only float64 array of finite numbers, for computations with cameras."""
    array = to_numpy(name, value)
    if array.dtype.kind not in "fiub" or array.shape != shape or not np.isfinite(array).all():
        raise InvalidArgument.of(name, f"expected finite numbers of shape {list(shape)}, got {array_text(array)}")
    result = array.astype(np.float64)
    result.flags.writeable = False
    return result


def check_levels(name: str, array: npt.NDArray[Any]) -> None:
    """Raises InvalidArgument for integers that are neither uint8 nor 0 and 1, since their largest level is unknown."""
    if array.dtype.kind not in "iu" or array.dtype == np.uint8 or array.size == 0:
        return
    least, most = int(array.min()), int(array.max())
    if least < 0 or most > 1:
        text = f"expected levels of 0 to 255 as uint8, or floats of 0 to 1, got {array.dtype} of {least} to {most}"
        raise InvalidArgument.of(
            name, f"{text}; pass levels of 8 bits with .astype(np.uint8), divide others by the largest"
        )


def affine_array(name: str, value: Any) -> Float64:
    """Converts `value` to a read-only float64 matrix [4, 4] for column vectors, whose last row is 0 0 0 1."""
    matrix = float64_array(name, value, (4, 4))
    if not np.allclose(matrix[3], (0.0, 0.0, 0.0, 1.0), atol=1e-6):
        text = f"expected the last row 0 0 0 1, got {matrix[3].tolist()}; transpose a matrix that is for row vectors"
        raise InvalidArgument.of(name, text)
    return matrix


def check_shape(name: str, actual: Sequence[int], shape: Sequence[Any], advice: str = "") -> None:
    """Raises InvalidArgument unless `actual` matches the expected `shape`, which is as for `float32_array`.

    A leading ellipsis in `shape` stands for any number of sizes.
    """
    sizes = shape[1:] if ... in shape else shape
    found = actual[max(len(actual) - len(sizes), 0) :] if ... in shape else actual
    fits = len(found) == len(sizes) and all(
        isinstance(size, str) or size == each for size, each in zip(sizes, found, strict=True)
    )
    if not fits:
        raise InvalidArgument.of(name, f"expected shape {shape_text(shape)}, got {list(actual)}{advice}")


def array_text(array: npt.NDArray[Any]) -> str:
    """Formats an array for error messages: its values if they are few, else its type and shape."""
    return str(array.tolist()) if array.size <= _MOST_SHOWN else f"{array.dtype} of shape {list(array.shape)}"


def shape_text(shape: Sequence[Any]) -> str:
    """Formats a shape for error messages."""
    return "[" + ", ".join(".." if size is ... else str(size) for size in shape) + "]"


def summary(kind: str, arrays: Mapping[str, Any]) -> str:
    """Formats arrays of any library on one line, with types and shapes; omits None."""

    def text(value: Any) -> str:
        # A JAX pytree may hold anything in place of arrays.
        return (
            f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}" if hasattr(value, "dtype") else repr(value)
        )

    return f"{kind}({', '.join(f'{name} {text(value)}' for name, value in arrays.items() if value is not None)})"


Array = npt.NDArray[Any]


class Tensors:
    """Base class of values made of arrays: provides all attributes that are arrays, in the order of assignment."""

    @property
    def tensors(self) -> dict[str, Array]:
        """The existing arrays by name, in the order of the protocol."""
        return {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}

    @property
    def nbytes(self) -> int:
        """The bytes of all arrays."""
        return sum(array.nbytes for array in self.tensors.values())


class NamedArrays(Mapping[str, Array]):
    """A mapping of arrays that are also attributes; the error for a missing name lists the existing names."""

    # Advice that ends the error for a missing name.
    _advice: ClassVar[str] = ""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._arrays = MappingProxyType(dict(arrays))

    def __getitem__(self, name: str) -> Array:
        try:
            return self._arrays[name]
        except KeyError:
            raise KeyError(self._missing(name)) from None

    def __getattr__(self, name: str) -> Array:
        # Python calls this only for names that are not ordinary attributes; "_arrays" is missing while unpickling.
        if not name.startswith("_") and name in self._arrays:
            return self._arrays[name]
        raise AttributeError(self._missing(name) if not name.startswith("_") else name)

    def __getstate__(self) -> dict[str, Any]:
        """Returns the attributes, to be pickled or copied."""
        return {**vars(self), "_arrays": dict(self._arrays)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _arrays=MappingProxyType(state["_arrays"]))

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._arrays]

    def __repr__(self) -> str:
        return summary(type(self).__name__, self._arrays)

    def _missing(self, name: str) -> str:
        return f'no "{name}" here, only {", ".join(self._arrays) or "nothing"}; {self._advice}'
