"""The header of a PLY file, read and checked against the file's size before anything is allocated for its content."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lumigrad.client.base.arguments import file_path
from lumigrad.client.base.arrays import Float32
from lumigrad.client.base.extras import require
from lumigrad.client.base.replacing import replaced
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.formats.source import malformed

_LONGEST_HEADER = 1 << 20
# Bytes of padding behind the content, among them DOS's end of a file, and of a block in which they are looked for.
PADDING, _BLOCK = b"\0\t\n\r\x1a ", 1 << 20
# NumPy's codes of types, whose last character is the size in bytes.
CODES = {
    "char": "i1", "uchar": "u1", "short": "i2", "ushort": "u2", "int": "i4", "uint": "u4", "float": "f4",
    "double": "f8", "int8": "i1", "uint8": "u1", "int16": "i2", "uint16": "u2", "int32": "i4", "uint32": "u4",
    "float32": "f4", "float64": "f8",
}  # fmt: skip
_KINDS = {np.dtype(np.uint8): "u1", np.dtype(np.float64): "<f8"}
_END = re.compile(rb"[\r\n](?P<text>end_header[ \t]*)(\r\n|\r|\n)")
_FORMATS = ("ascii", "binary_little_endian", "binary_big_endian")


@dataclass
class PlyElement:
    """One element: a number of rows of properties.

    Attributes:
        name: e.g. "vertex".
        count: rows.
        types: type of each property by its name; "list" for lists.
        lists: the types of the length and of the values of each list.
        row_bytes: minimum size of a row in the file, bytes.
    """

    name: str
    count: int
    types: dict[str, str]
    lists: dict[str, tuple[str, str]] = field(default_factory=dict)
    row_bytes: int = 0


# Largest levels of 8 and 16 bits, and a level that float colours from 0 to 1, however bright, do not reach.
_LEVELS, _LEAST_LEVEL = (255, 65535), 16


@dataclass(frozen=True)
class PlyHeader:
    """The header of a PLY file.

    Attributes:
        path: the file.
        elements: by name, in the order of the file.
        comments: the texts of its comments.
        kind: ascii, binary_little_endian or binary_big_endian.
        length: bytes of the header.
    """

    path: Path
    elements: dict[str, PlyElement]
    comments: tuple[str, ...]
    kind: str
    length: int

    @staticmethod
    def read(path: str | PathLike[str]) -> PlyHeader:
        """Reads a header; raises InvalidArgument if there is none, or if the file is too short for its content."""
        path = file_path("path", path)
        with open(path, "rb") as file:
            start = file.read(_LONGEST_HEADER)
            size = file.seek(0, 2)
        kind, lines, length = _lines(path, start)
        text = kind == "ascii"
        elements = _elements(path, lines, text)
        needed = sum(element.count * element.row_bytes for element in elements.values())
        comments = tuple(line.partition(" ")[2] for line in lines if line.startswith("comment "))
        header = PlyHeader(path, elements, comments, kind, length)
        # The last value of a text file needs no separator.
        if needed - text > size - length:
            raise header.fail(
                f"expected at least {needed:,} bytes behind the header for {header.counted}; "
                f"there are {size - length:,}",
            )
        if not text and not any(element.lists for element in elements.values()):
            header.check_end(length + needed)
        return header

    @property
    def vertex_properties(self) -> set[str]:
        """Names of the properties of the element "vertex"; empty without one."""
        return set(self.elements["vertex"].types) if "vertex" in self.elements else set()

    @property
    def counted(self) -> str:
        """The elements with their counts, in words."""
        return ", ".join(f"{element.count:,} {element.name}" for element in self.elements.values())

    def fail(self, description: str) -> InvalidArgument:
        """Returns the error to raise about this file."""
        return malformed(self.path, description)

    def check_end(self, end: int) -> None:
        """Raises InvalidArgument if more than padding follows the last element, which ends at the byte `end`."""
        with open(self.path, "rb") as file:
            file.seek(end)
            while block := file.read(_BLOCK):
                if block.strip(PADDING):
                    raise self.surplus()

    def surplus(self) -> InvalidArgument:
        """Returns the error to raise about content behind the last element, which readers would leave out."""
        text = f"expected the end of the file behind {self.counted}, as its header says, got more"
        return self.fail(f"{text}; its counts or types are wrong, or a transfer as text changed it: export it anew")

    def points(self) -> Any:
        """Reads the vertices as a structured array with x, y and z."""
        if not {"x", "y", "z"} <= self.vertex_properties:
            raise self.fail(f"expected vertex properties x, y, z, got {sorted(self.vertex_properties)}")
        return self.table("vertex")

    def table(self, element: str, *, mapped: bool = False) -> Any:
        """Reads the rows of an element as a structured array.

        With `mapped` this is a memory map where the file allows one, and must not be read: if another program makes the
        file shorter, that ends the process.
        """
        plyfile = require("plyfile", "io", "reading PLY files")
        if self.kind == "ascii":
            self._check_lines()
        try:
            return plyfile.PlyData.read(str(self.path), mmap=mapped)[element].data
        except (plyfile.PlyParseError, ValueError, TypeError, KeyError, OverflowError) as error:
            raise self.fail(f"expected a PLY file, but it does not parse: {error}") from error

    def _check_lines(self) -> None:
        """Raises InvalidArgument if a text has more lines than rows."""
        with open(self.path, "rb") as file:
            file.seek(self.length)
            lines = sum(1 for line in file if line.strip(PADDING))
        if lines > sum(element.count for element in self.elements.values()):
            raise self.surplus()


def fractions(*columns: npt.NDArray[Any]) -> Float32:
    """Returns columns that belong together as [N, K], scaled so that the largest possible value is 1.

    For integers this is 255 if no value exceeds it, else 65,535, but at most the limit of their type: 127 for int8.
    Negative int8 are levels from 128 on, as programs without unsigned types write them. Floats are unchanged, unless
    they look like 8-bit levels: whole numbers up to 255, some of them above 16.
    """
    values = np.stack(columns, axis=1)
    if values.dtype == np.int8 and values.min(initial=0) < 0:
        values = values.view(np.uint8)
    most = float(values.max(initial=0))
    if values.dtype.kind in "iu":
        limit = np.iinfo(values.dtype).max
        largest = next((bits for bits in _LEVELS if most <= bits <= limit), limit)
    else:
        is_level = _LEAST_LEVEL < most <= _LEVELS[0] and bool((values == np.floor(values)).all())
        largest = _LEVELS[0] if is_level else 1
    return np.asarray(values.astype(np.float32) / np.float32(largest))


def write_vertices(path: str | PathLike[str], columns: Mapping[str, Any], comments: Sequence[str] = ()) -> None:
    """Writes a binary little-endian PLY file whose vertices have these properties [N], in this order.

    Columns of uint8 and float64 stay what they are; all others become float32.
    """
    plyfile = require("plyfile", "io", "writing PLY files")
    kinds = [(name, _KINDS.get(column.dtype, "<f4")) for name, column in columns.items()]
    table = np.empty(len(columns["x"]), dtype=kinds)
    for name, column in columns.items():
        table[name] = column
    element = plyfile.PlyElement.describe(table, "vertex")
    with replaced(path) as new:
        plyfile.PlyData([element], byte_order="<", comments=list(comments)).write(str(new))


def vertex_header(names: Sequence[str], count: int) -> bytes:
    """Returns the header of a binary little-endian file of vertices with these properties, all float32."""
    properties = "".join(f"property float {name}\n" for name in names)
    return f"ply\nformat binary_little_endian 1.0\nelement vertex {count}\n{properties}end_header\n".encode()


def _lines(path: str | PathLike[str], start: bytes) -> tuple[str, list[str], int]:
    """Returns the format, the header's lines without "ply", "format" and "end_header", and its length in bytes."""
    end = _END.search(start)
    if not start.startswith(b"ply") or end is None:
        raise malformed(path, 'expected a PLY header, from a line "ply" to a line "end_header", got none')
    lines = [line.strip() for line in start[3 : end.start()].decode("ascii", "replace").splitlines()]
    # Comments may come before the format.
    number, words = next(((k, line.split()) for k, line in enumerate(lines) if not _is_comment(line)), (0, []))
    if len(words) < 2 or words[0] != "format" or words[1] not in _FORMATS:
        raise malformed(
            path, f'expected a line "format …" after "ply", one of {", ".join(_FORMATS)}, got {" ".join(words)!r}'
        )
    # Content follows a carriage return directly if no line of the header ends with a line feed.
    length = end.end("text") + 1 if b"\n" not in start[: end.end("text")] else end.end()
    return words[1], lines[:number] + lines[number + 1 :], length


def _is_comment(line: str) -> bool:
    return not line or line.split(maxsplit=1)[0] in ("comment", "obj_info")


def _elements(path: str | PathLike[str], lines: list[str], text: bool) -> dict[str, PlyElement]:
    elements: dict[str, PlyElement] = {}
    current: PlyElement | None = None
    for line in lines:
        words = line.split()
        if words[:1] == ["element"]:
            if len(words) != 3 or not words[2].isdecimal() or words[1] in elements:
                raise malformed(path, f'expected "element NAME COUNT" with a new name, got {line!r}')
            current = elements[words[1]] = PlyElement(words[1], int(words[2]), {})
        elif words[:1] == ["property"]:
            if current is None or not _add_property(current, words[1:], text):
                raise malformed(path, f'expected "property TYPE NAME" below its element, got {line!r}')
        elif not _is_comment(line):
            raise malformed(path, f"expected element, property or comment in the PLY header, got {line!r}")
    return elements


def _add_property(element: PlyElement, words: list[str], text: bool) -> bool:
    """Adds a property; returns False if the line is not a valid one."""
    is_list = words[:1] == ["list"]
    types = words[1:3] if is_list else words[:1]
    if len(words) != (4 if is_list else 2) or not all(kind in CODES for kind in types) or words[-1] in element.types:
        return False
    element.types[words[-1]] = "list" if is_list else types[0]
    if is_list:
        element.lists[words[-1]] = types[0], types[1]
    # A value in text takes at least a digit and a separator.
    element.row_bytes += 2 if text else int(CODES[types[0]][-1])
    return True
