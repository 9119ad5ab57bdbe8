"""The arrays of a glTF file: accessors of every type, with strides, normalised integers and sparse values."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lumigrad.client.base.arrays import Float32
from lumigrad.client.formats.gltf.document import Document, Json
from lumigrad.client.formats.source import Source

Array = npt.NDArray[Any]

BYTE, UBYTE, SHORT, USHORT, UINT, FLOAT = 5120, 5121, 5122, 5123, 5125, 5126
_DTYPES = {BYTE: "<i1", UBYTE: "<u1", SHORT: "<i2", USHORT: "<u2", UINT: "<u4", FLOAT: "<f4"}
_NAMES = {BYTE: "int8", UBYTE: "uint8", SHORT: "int16", USHORT: "uint16", UINT: "uint32", FLOAT: "float"}
# The kinds of positions, integers by KHR_mesh_quantization.
POSITIONS = ((FLOAT, False), *((kind, normal) for kind in (BYTE, UBYTE, SHORT, USHORT) for normal in (False, True)))
_WIDTHS = {"SCALAR": 1, "VEC2": 2, "VEC3": 3, "VEC4": 4}
_INDICES = (UBYTE, USHORT, UINT)


def accessor_count(document: Document, index: Any) -> int:
    """Returns the number of elements that an accessor announces."""
    return document.integer(document.item("accessors", index), "count", f"accessors[{index}]")


def has_data(document: Document, index: Any) -> bool:
    """Whether an accessor refers to bytes of its own; it does not if an extension holds the data."""
    accessor = document.item("accessors", index)
    return "bufferView" in accessor or "sparse" in accessor


def read_accessor(
    document: Document, index: Any, shape: str, kinds: tuple[tuple[int, bool], ...], what: str
) -> Float32:
    """Returns the values [N, width] of an accessor as float32, integers converted as they are or normalised.

    Args:
        document: the file.
        index: index of the accessor.
        shape: the expected accessor type, e.g. "VEC3".
        kinds: the allowed pairs of component type and normalised flag.
        what: the attribute, for errors.
    """
    values = _read(document, index, shape, kinds, what)
    return _as_float32(values, document.item("accessors", index).get("normalized", False) is True)


def read_indices(document: Document, index: Any, what: str) -> npt.NDArray[np.int64]:
    """Returns the values [N] of an accessor of indices; `what` names it in errors."""
    return _read(document, index, "SCALAR", tuple((kind, False) for kind in _INDICES), what)[:, 0].astype(np.int64)


def _read(document: Document, index: Any, shape: str, kinds: tuple[tuple[int, bool], ...], what: str) -> Array:
    """Returns the values [N, width] of an accessor as they are stored."""
    accessor, where = document.item("accessors", index), f"accessors[{index}]"
    kind = (document.integer(accessor, "componentType", where), accessor.get("normalized", False) is True)
    if accessor.get("type") != shape or kind not in kinds:
        allowed = ", ".join(_kind_name(each) for each in kinds)
        got = f"{accessor.get('type')!r} of {_kind_name(kind)}"
        raise document.fail(f"expected {shape} of {allowed} for {what} in {where}, got {got}")
    count, width = document.integer(accessor, "count", where), _WIDTHS[shape]
    document.check_growth(4 * count * width)
    dtype = np.dtype(_DTYPES[kind[0]])
    if "bufferView" in accessor:
        source, stride = document.view(accessor["bufferView"])
        offset = document.integer(accessor, "byteOffset", where, 0)
        values = _strided(document, source, (count, width), dtype, offset, stride)
    else:
        values = np.zeros((count, width), dtype)
    if "sparse" in accessor:
        values = values.copy()
        _replace(document, document.object(accessor["sparse"], f"{where}.sparse"), values, f"{where}.sparse")
    return values


def _kind_name(kind: tuple[int, bool]) -> str:
    return ("normalised " if kind[1] else "") + _NAMES.get(kind[0], str(kind[0]))


def _strided(
    document: Document, source: Source, shape: tuple[int, int], dtype: np.dtype[Any], offset: int, stride: int | None
) -> Array:
    """Returns a view [N, width] of elements `stride` bytes apart."""
    element = dtype.itemsize * shape[1]
    if stride is None or stride == element:
        return source.array(dtype, shape, offset, "elements")
    if stride < element:
        raise document.fail(f"expected a byteStride of at least {element} in {source.part}, got {stride}")
    if not shape[0]:
        return np.zeros(shape, dtype)
    data = source.take(offset, stride * (shape[0] - 1) + element, "elements")
    values: Array = np.ndarray(shape, dtype, data, strides=(stride, dtype.itemsize))
    return values


def _replace(document: Document, sparse: Json, values: Array, where: str) -> None:
    """Writes the values of a sparse accessor into `values`."""
    count = document.integer(sparse, "count", where)
    if count > len(values):
        raise document.fail(f"expected at most {len(values):,} values in {where}, got {count:,}")
    indices = document.object(sparse.get("indices"), f"{where}.indices")
    kind = document.integer(indices, "componentType", f"{where}.indices")
    if kind not in _INDICES:
        raise document.fail(f"expected uint8, uint16 or uint32 in {where}.indices, got {_kind_name((kind, False))}")
    places = _part(document, indices, (count, 1), np.dtype(_DTYPES[kind]), f"{where}.indices")[:, 0]
    if count and int(places.max()) >= len(values):
        raise document.fail(f"expected indices below {len(values):,} in {where}.indices, got {places.max():,}")
    stored = document.object(sparse.get("values"), f"{where}.values")
    values[places] = _part(document, stored, (count, values.shape[1]), values.dtype, f"{where}.values")


def _part(document: Document, owner: Json, shape: tuple[int, int], dtype: np.dtype[Any], where: str) -> Array:
    source, _ = document.view(owner.get("bufferView"))
    return source.array(dtype, shape, document.integer(owner, "byteOffset", where, 0), where)


def _as_float32(values: Array, normalized: bool) -> Float32:
    if not normalized:
        return values.astype(np.float32)
    scaled = values.astype(np.float32) / np.float32(np.iinfo(values.dtype).max)
    # glTF clamps the smallest signed integer, which scales to less than -1.
    return np.asarray(np.maximum(scaled, np.float32(-1)), np.float32)
