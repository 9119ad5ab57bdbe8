"""Meshes in STL, OBJ, PLY and GLB files; STL is read through trimesh."""

from __future__ import annotations

import re
from io import BytesIO
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lumigrad.client.base.arguments import file_path, number
from lumigrad.client.base.arrays import Float64
from lumigrad.client.base.extras import require
from lumigrad.client.base.replacing import replaced
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.formats.gltf.triangles import read_triangles
from lumigrad.client.formats.mesh_ply import read_ply
from lumigrad.client.formats.obj import read_obj
from lumigrad.client.formats.source import malformed, shortened
from lumigrad.client.values.mesh import Mesh

_FORMATS = ("stl", "obj", "ply", "glb")
_READERS = {"obj": read_obj, "ply": read_ply}
# Bytes of a binary STL header, which ends with the number of triangles in four bytes, and of a triangle; a text STL has
# its first facet within the last number of bytes.
_STL_HEADER, _STL_TRIANGLE, _STL_TEXT = 84, 50, 1 << 12
_STL_KEYWORD = re.compile(rb"\s+(?=(?:facet|outer|vertex|endloop|endfacet|endsolid|solid)\b)", re.IGNORECASE)
# The name of a solid may have keywords in it. It ends with its line, or before the first facet or the next solid.
_STL_NAME = re.compile(
    rb"([sS][oO][lL][iI][dD])\b[^\n]{0,4096}?"
    rb"(?=[ \t\r]*(?:\n|\Z)|(?i:\s+facet\s+normal(?:\s+\S+){3}\s+outer\b|\s+solid\b))"
)
_PRINTABLE = b"\t\n\r" + bytes(range(32, 127))
_Part = tuple[Float64, npt.NDArray[np.int64]]


def load_mesh(path: str | PathLike[str], scale: float = 1.0) -> Mesh:
    """Reads all triangles of a file as one mesh, with vertices and faces in the order of the file.

    Args:
        path: the file.
        scale: metres per unit of the file, > 0.

    Raises:
        InvalidArgument: another kind of file, a damaged one, or one without triangles.
    """
    scale = number("scale", scale)
    if not 0.0 < scale < np.inf:
        raise InvalidArgument.of("scale", f"expected metres per unit of the file, > 0, got {scale}")
    parts = _read(file_path("path", path))
    if not parts:
        raise malformed(path, "expected triangles, got none; the file may be incomplete, or hold points or lines only")
    first = np.cumsum([0, *(len(vertices) for vertices, _ in parts[:-1])])
    vertices = np.concatenate([vertices for vertices, _ in parts]) * scale
    faces = np.concatenate([faces + start for (_, faces), start in zip(parts, first, strict=True)])
    try:
        return Mesh(vertices, faces, Path(path).stem)
    except InvalidArgument as error:
        raise malformed(path, str(error)) from error


def save_mesh(mesh: Mesh, path: str | PathLike[str]) -> None:
    """Writes a mesh in the format of the suffix; STL loses the sharing of vertices."""
    kind = _format_of(path)
    trimesh = require("trimesh", "mesh", "writing mesh files")
    with replaced(path) as new:
        trimesh.Trimesh(mesh.vertices, mesh.faces, process=False).export(str(new), file_type=kind)


def scaled(mesh: Mesh, factors: Any) -> Mesh:
    """Returns a mesh whose vertices are multiplied by one factor, or by one for each axis.

    Raises:
        InvalidArgument: other factors, or 0 among them.
    """
    try:
        scale = np.broadcast_to(np.asarray(factors, np.float64), 3)
    except (TypeError, ValueError):
        scale = np.zeros(3)
    if not (np.isfinite(scale).all() and scale.all()):
        raise InvalidArgument.of(
            "scale", f"expected one factor or three, finite and not 0, got {shortened(str(factors))}"
        )
    # Mirroring reverses the faces' orientation.
    return Mesh(mesh.vertices * scale, mesh.faces[:, ::-1] if np.prod(scale) < 0 else mesh.faces)


def _format_of(path: str | PathLike[str]) -> str:
    kind = Path(path).suffix.lower().removeprefix(".")
    if kind not in _FORMATS:
        expected = ", ".join(f".{known}" for known in _FORMATS)
        raise InvalidArgument.of("path", f"expected a name that ends in one of {expected}, got {fspath(path)}")
    return kind


def _read(path: str | PathLike[str]) -> list[_Part]:
    kind = _format_of(path)
    if kind == "stl":
        return _read_stl(path)
    parts = list(read_triangles(path)) if kind == "glb" else [_READERS[kind](path)]
    return [(vertices, faces) for vertices, faces in parts if faces.size]


def _read_stl(path: str | PathLike[str]) -> list[_Part]:
    trimesh = require("trimesh", "mesh", "reading mesh files")
    with open(path, "rb") as file:
        content = _in_lines(_without_rest(path, file.read()))
    facets = _facets_in(content)
    corners = len(re.findall(rb"\bvertex\b", content, re.IGNORECASE)) if facets else 0
    # The parser would join the vertices of different facets.
    if corners > 3 * facets:
        text = f"expected three vertices of each facet, got {corners:,} of {facets:,}"
        raise malformed(path, f"{text}; export triangles instead of polygons")
    try:
        scene = trimesh.load_scene(BytesIO(content), file_type="stl", process=False)
    except Exception as error:  # Parsers raise various errors for damaged files.
        reason = f"{type(error).__name__}: {error}"
        raise malformed(path, f"expected a mesh as STL, but it does not parse: {reason}") from error
    shapes = [scene.geometry[scene.graph[node][1]] for node in scene.graph.nodes_geometry]
    parts = [
        (np.asarray(shape.vertices, np.float64), np.asarray(shape.faces, np.int64))
        for shape in shapes
        if np.size(getattr(shape, "faces", ()))
    ]
    read = sum(len(faces) for _, faces in parts)
    # The parser skips a last solid that is truncated.
    if 0 < read < facets:
        raise malformed(path, f"expected {facets} whole triangles, got {read}; the file may be incomplete")
    return parts


def _in_lines(content: bytes) -> bytes:
    """Returns a text STL without names, with a line for each keyword, as the parser needs it; other files unchanged."""
    if content[:_STL_TEXT].lstrip()[:5].lower() != b"solid" or _stl_end(content)[1] == len(content):
        return content
    content = _STL_NAME.sub(rb"\1", content)
    vertices = len(re.findall(rb"vertex", content, re.IGNORECASE))
    return _STL_KEYWORD.sub(b"\n", content) if content.count(b"\n") < vertices else content


def _without_rest(path: str | PathLike[str], content: bytes) -> bytes:
    """Returns a binary STL file up to the end of its triangles; other readers ignore the rest, too.

    Raises:
        InvalidArgument: more triangles follow, or another solid.
    """
    if len(content) < _STL_HEADER:
        return content
    count, end = _stl_end(content)
    if count == 0 or end >= len(content):
        return content
    rest = content[end:]
    is_solid = len(rest) >= _STL_HEADER and _stl_end(rest)[1] == len(rest)
    # Zeros at the ends are padding; triangles differ from text by zeros between other bytes.
    is_more = bool(rest.strip(b"\0").translate(None, _PRINTABLE))
    if is_more and (is_solid or len(rest) % _STL_TRIANGLE == 0):
        raise malformed(path, f"expected {count:,} triangles, as its header says, got more behind them; export it anew")
    return content[:end]


def _stl_end(content: bytes) -> tuple[int, int]:
    """Returns the number of triangles that a binary STL header states, and the offset where they end."""
    count = int.from_bytes(content[_STL_HEADER - 4 : _STL_HEADER], "little")
    return count, _STL_HEADER + _STL_TRIANGLE * count


def _facets_in(content: bytes) -> int:
    """Returns the number of facets in a text STL; 0 for a binary one."""
    return len(re.findall(rb"^[ \t]*facet[ \t]+normal\b", content, re.MULTILINE | re.IGNORECASE))
