"""Reads triangles from glTF: primitives of meshes, where the scene's nodes place them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from os import PathLike
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lumigrad.client.base.arrays import Float64
from lumigrad.client.formats.gltf.accessors import POSITIONS, has_data, read_accessor, read_indices
from lumigrad.client.formats.gltf.document import Document, Json
from lumigrad.client.formats.gltf.nodes import QUANTIZATION, PlacedMesh, check_required, placed_meshes, refuse_instances

_Faces = npt.NDArray[np.int64]
# Modes of primitives; lower ones are points and lines, which have no surface.
_TRIANGLES, _STRIP, _FAN = 4, 5, 6


def read_triangles(path: str | PathLike[str]) -> Iterator[tuple[Float64, _Faces]]:
    """Yields the vertices [V, 3] and triangles [F, 3] of each primitive of a .glb file, in the frame of its scene.

    Raises:
        InvalidArgument: the file is damaged, or uses an unsupported feature that changes shapes.
    """
    document = Document(Path(path))
    check_required(document, {QUANTIZATION})
    decoded: dict[str, tuple[Float64, _Faces] | None] = {}
    for placed in placed_meshes(document):
        refuse_instances(document, placed)
        _say_ignored(document, placed)
        if not np.isfinite(placed.matrix).all():
            raise document.fail(f"expected finite transforms, but that of {placed.where} is not")
        mesh = document.item("meshes", placed.mesh)
        for index, primitive in enumerate(document.list(mesh, "primitives", f"meshes[{placed.mesh}].")):
            where = f"meshes[{placed.mesh}].primitives[{index}]"
            if where not in decoded:
                decoded[where] = _read_primitive(document, document.object(primitive, where), where)
            if (found := decoded[where]) is not None:
                yield _moved(*found, placed.matrix)


def _say_ignored(document: Document, placed: PlacedMesh) -> None:
    mesh = document.item("meshes", placed.mesh)
    weights = document.list(placed.node if "weights" in placed.node else mesh, "weights", f"{placed.where}.")
    bends = {
        f"the skin of {placed.where} is": "skin" in placed.node,
        f"the weights of {placed.where} are": any(weights),
    }
    for ignored in (text for text, bent in bends.items() if bent):
        text = f"{document.path}: {ignored} ignored: the mesh keeps the shape that it has before"
        warnings.warn(f"{text} bones and morph targets change it", stacklevel=6)


def _moved(vertices: Float64, faces: _Faces, matrix: Float64) -> tuple[Float64, _Faces]:
    # Mirroring would turn the faces inside out.
    is_mirrored = np.linalg.det(matrix[:3, :3]) < 0
    return vertices @ matrix[:3, :3].T + matrix[:3, 3], faces[:, ::-1] if is_mirrored else faces


def _read_primitive(document: Document, primitive: Json, where: str) -> tuple[Float64, _Faces] | None:
    """Returns the vertices and triangles of a primitive in its own frame; None if it has no surface."""
    mode = document.integer(primitive, "mode", where, _TRIANGLES)
    if mode < _TRIANGLES:
        return None
    attributes = document.object(primitive.get("attributes"), f"{where}.attributes")
    if "POSITION" not in attributes:
        raise document.fail(f"expected the attribute POSITION in {where}")
    for index in (attributes["POSITION"], *([primitive["indices"]] if "indices" in primitive else ())):
        # Accessors without data stand for zeros, or for what an extension has.
        if not has_data(document, index):
            names = ", ".join(document.extensions(primitive, where)) or "none"
            text = f"expected data in accessors[{index}] of {where}, whose extensions ({names}) are not supported"
            raise document.fail(f"{text}; write the file without compression")
    vertices = read_accessor(document, attributes["POSITION"], "VEC3", POSITIONS, "POSITION").astype(np.float64)
    order = np.arange(len(vertices))
    if "indices" in primitive:
        order = read_indices(document, primitive["indices"], f"indices of {where}")
        if len(order) and order.max() >= len(vertices):
            raise document.fail(f"expected indices below {len(vertices):,} in {where}, got {order.max():,}")
    return vertices, _triangles(document, order, mode, where)


def _triangles(document: Document, order: _Faces, mode: int, where: str) -> _Faces:
    """Returns the triangles [F, 3] of an ordered list of vertices."""
    if mode == _TRIANGLES:
        if len(order) % 3:
            raise document.fail(f"expected whole triangles in {where}, got {len(order):,} corners")
        return order.reshape(-1, 3)
    if mode not in (_STRIP, _FAN):
        raise document.fail(f"expected a mode from 0 to {_FAN} in {where}, got {mode}")
    first = order[:-2] if mode == _STRIP else np.broadcast_to(order[:1], max(len(order) - 2, 0))
    faces = np.stack([first, order[1:-1], order[2:]], axis=1)
    if mode == _STRIP:
        # Every second triangle of a strip has the opposite winding.
        faces[1::2] = faces[1::2, [1, 0, 2]]
    return faces
