"""Triangles of PLY files: text and binary, and polygons that need not be convex nor have equally many corners."""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from lumigrad.client.base.arrays import Float64
from lumigrad.client.formats.ply_header import CODES, PADDING, PlyElement, PlyHeader
from lumigrad.client.formats.polygons import triangles_of

_CORNERS = ("vertex_indices", "vertex_index")


def read_ply(path: str | PathLike[str]) -> tuple[Float64, npt.NDArray[np.int64]]:
    """Reads vertices [V, 3] and triangles [F, 3], in the order of the file.

    Raises:
        InvalidArgument: a damaged file, or one with strips of triangles.
    """
    header = PlyHeader.read(path)
    vertices, polygons = np.empty((0, 3)), np.empty((0, 3), np.int64)
    if "tristrips" in header.elements and "face" not in header.elements:
        raise header.fail('expected an element "face", got "tristrips"; export triangles instead of strips')
    body = _Text(header) if header.kind == "ascii" else _Binary(header)
    ragged: list[npt.NDArray[Any]] | None = None
    for element in header.elements.values():
        if element.name == "vertex":
            if not {"x", "y", "z"} <= set(element.types):
                raise header.fail(f"expected vertex properties x, y, z, got {sorted(element.types)}")
            columns = body.columns(element, ("x", "y", "z"))
            vertices = np.stack([np.asarray(column, np.float64) for column in columns], 1)
        elif element.name == "face":
            name = next((name for name in _CORNERS if name in element.lists), None)
            if name is None:
                raise header.fail(f"expected a list vertex_indices of each face, got {sorted(element.types)}")
            (ragged,) = body.columns(element, (name,))
        else:
            body.columns(element, ())
    body.check_end()
    if ragged is not None and len(ragged):
        polygons = _triangles(header, ragged, vertices)
    return vertices, polygons


def _triangles(header: PlyHeader, faces: Any, vertices: Float64) -> npt.NDArray[np.int64]:
    """Returns the triangles of faces: one array if all have equally many corners, else a list of arrays."""
    for number, corners in enumerate(faces if isinstance(faces, list) else faces[:1]):
        if len(corners) < 3:
            raise header.fail(f"expected at least three corners of each face, got {len(corners)} of face {number}")
    joined = np.concatenate(faces) if isinstance(faces, list) else faces.reshape(-1)
    if joined.dtype.kind == "f" and not (joined == np.floor(joined)).all():
        raise header.fail("expected whole numbers as the indices of faces, got fractions")
    if joined.min() < 0 or joined.max() >= len(vertices):
        worst = joined.min() if joined.min() < 0 else joined.max()
        raise header.fail(f"expected indices of the {len(vertices)} vertices, from 0, got {worst:g}")
    if not isinstance(faces, list) and faces.shape[1] == 3:
        return np.asarray(faces, np.int64)
    polygons = (tuple(int(corner) for corner in corners) for corners in faces)
    return np.array([each for corners in polygons for each in triangles_of(corners, vertices)], np.int64)


def _short(header: PlyHeader, element: PlyElement) -> Exception:
    return header.fail(f"expected {element.count:,} rows of {element.name}, got fewer; the file may be incomplete")


class _Text:
    """The words after the header, read element by element."""

    def __init__(self, header: PlyHeader) -> None:
        self._header = header
        self._words = header.path.read_bytes()[header.length :].split()
        self._at = 0

    def columns(self, element: PlyElement, names: tuple[str, ...]) -> tuple[Any, ...]:
        """Returns the named properties of all rows of the next element; lists as an array, or as a list of arrays."""
        try:
            if not element.lists:
                width = len(element.types)
                taken = self._take(element.count * width)
                rows = np.array(taken, np.float64).reshape(element.count, width)
                return tuple(rows[:, list(element.types).index(name)] for name in names)
            found: list[list[Any]] = [[] for _ in names]
            for _ in range(element.count):
                for kind in element.types:
                    count = int(self._take(1)[0]) if kind in element.lists else 1
                    values = self._take(count)
                    if kind in names:
                        found[names.index(kind)].append(np.array(values, np.float64))
            return _columns(element, names, found)
        except EOFError:
            raise _short(self._header, element) from None
        except ValueError as error:
            raise self._header.fail(f"expected numbers in each row of {element.name}, got other text") from error

    def check_end(self) -> None:
        """Raises InvalidArgument if more follows the last element."""
        if any(word.strip(PADDING) for word in self._words[self._at :]):
            raise self._header.surplus()

    def _take(self, count: int) -> list[bytes]:
        if count < 0 or self._at + count > len(self._words):
            raise EOFError
        self._at += count
        return self._words[self._at - count : self._at]


class _Binary:
    def __init__(self, header: PlyHeader) -> None:
        self._header = header
        self._order = "<" if header.kind == "binary_little_endian" else ">"
        self._bytes = header.path.read_bytes()
        self._at = header.length

    def columns(self, element: PlyElement, names: tuple[str, ...]) -> tuple[Any, ...]:
        if not element.count:
            return tuple([] for _ in names)
        if element.lists and (even := self._even_rows(element)) is None:
            return self._uneven(element, names)
        rows = even if element.lists else self._rows(element, {})
        if rows is None:
            raise _short(self._header, element)
        self._at += rows.nbytes
        return tuple(rows[name] for name in names)

    def check_end(self) -> None:
        self._header.check_end(self._at)

    def _rows(self, element: PlyElement, counts: dict[str, int]) -> Any:
        """Returns all rows, given the lengths of their lists; None if there are too few bytes."""
        fields: list[Any] = []
        for name, kind in element.types.items():
            if kind != "list":
                fields.append((name, self._order + CODES[kind]))
                continue
            length, value = element.lists[name]
            fields.append((f"length of {name}", self._order + CODES[length]))
            fields.append((name, self._order + CODES[value], (counts[name],)))
        dtype = np.dtype(fields)
        if dtype.itemsize * element.count > len(self._bytes) - self._at:
            return None
        return np.frombuffer(self._bytes, dtype, element.count, self._at)

    def _even_rows(self, element: PlyElement) -> Any:
        """Returns all rows if their lists are as long as those of the first row, else None."""
        first = next(self._walk(element, 1))
        counts = {name: len(first[name]) for name in element.lists}
        rows = self._rows(element, counts)
        if rows is None or any((rows[f"length of {name}"] != count).any() for name, count in counts.items()):
            return None
        return rows

    def _uneven(self, element: PlyElement, names: tuple[str, ...]) -> tuple[Any, ...]:
        found: list[list[Any]] = [[] for _ in names]
        for row in self._walk(element, element.count):
            for name, values in zip(names, found, strict=True):
                values.append(row[name])
            self._at = row[""]
        return _columns(element, names, found)

    def _walk(self, element: PlyElement, count: int) -> Iterator[dict[str, Any]]:
        """Yields rows one by one; the key "" holds the offset where each ends."""
        at = self._at
        for _ in range(count):
            row: dict[str, Any] = {}
            for name, kind in element.types.items():
                length, value = element.lists.get(name, ("", kind))
                size = 1
                if length:
                    (size,) = self._values(element, length, at, 1)
                    at += np.dtype(CODES[length]).itemsize
                row[name] = self._values(element, value, at, int(size))
                at += row[name].nbytes
            row[""] = at
            yield row

    def _values(self, element: PlyElement, kind: str, at: int, count: int) -> npt.NDArray[Any]:
        dtype = np.dtype(self._order + CODES[kind])
        if count < 0 or at + count * dtype.itemsize > len(self._bytes):
            raise _short(self._header, element)
        return np.frombuffer(self._bytes, dtype, count, at)


def _columns(element: PlyElement, names: tuple[str, ...], found: list[list[Any]]) -> tuple[Any, ...]:
    """Returns each property of all rows: numbers as an array, lists as an array if they are equally long."""
    return tuple(
        (np.array(rows) if len({len(row) for row in rows}) == 1 else rows)
        if name in element.lists
        else np.array(rows).reshape(-1)
        for name, rows in zip(names, found, strict=True)
    )
