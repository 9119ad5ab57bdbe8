"""The scene graph of a glTF file: its meshes, where the scene's nodes place them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from lumigrad.client.base.arrays import Float64
from lumigrad.client.base.cautions import warn_caller
from lumigrad.client.formats.gltf.document import Document, Json
from lumigrad.client.values.affine import matrices_of_quats

QUANTIZATION = "KHR_mesh_quantization"
# Required extensions that may be ignored, because materials, textures and lights are not read.
_IGNORED = ("KHR_materials_", "KHR_texture_", "KHR_lights_", "EXT_texture_", "KHR_xmp")
_INSTANCES = "EXT_mesh_gpu_instancing"
_VISIBILITY = "KHR_node_visibility"


@dataclass(frozen=True, eq=False)
class PlacedMesh:
    """A node with a mesh.

    Attributes:
        node: the node.
        where: its place in the file, e.g. "nodes[3]".
        mesh: the index of its mesh.
        matrix: [4, 4] mesh to scene.
    """

    node: Json
    where: str
    mesh: Any
    matrix: Float64


def check_required(document: Document, readable: Collection[str]) -> None:
    """Raises InvalidArgument if the file requires an extension that is neither readable nor purely visual."""
    for name in document.list(document.json, "extensionsRequired", ""):
        if not isinstance(name, str) or (name not in (*readable, _VISIBILITY) and not name.startswith(_IGNORED)):
            raise document.fail(f"expected a file that does not require the extension {name!r}, which is not supported")


def refuse_instances(document: Document, placed: PlacedMesh, what: str = "") -> None:
    """Raises InvalidArgument for a node that an extension instances."""
    if _INSTANCES in document.extensions(placed.node, placed.where):
        text = f"expected {placed.where} without {_INSTANCES}, which is not supported {what}".rstrip()
        raise document.fail(f"{text}; write a node for each instance")


def placed_meshes(document: Document) -> Iterator[PlacedMesh]:
    """Yields the mesh nodes of the default scene in node order; warns of hidden nodes."""
    visited: set[int] = set()
    hidden = 0
    stack = [(node, np.eye(4)) for node in reversed(_roots(document))]
    while stack:
        index, parent = stack.pop()
        node, where = document.item("nodes", index), f"nodes[{index}]"
        if index in visited:
            raise document.fail(f"expected a tree of nodes, but {where} has two parents")
        visited.add(index)
        if _is_hidden(document, node, where):
            hidden += 1
            continue
        matrix = parent @ _local_matrix(document, node, where)
        if "mesh" in node:
            yield PlacedMesh(node, where, node["mesh"], matrix)
        stack += [(child, matrix) for child in reversed(document.list(node, "children", f"{where}."))]
    if hidden:
        warn_caller(f"{document.path}: nodes that {_VISIBILITY} hides are left out, with their children: {hidden}")


def _is_hidden(document: Document, node: Json, where: str) -> bool:
    extension = document.extensions(node, where).get(_VISIBILITY, {})
    return document.object(extension, f"{where} {_VISIBILITY}").get("visible", True) is False


def _roots(document: Document) -> list[Any]:
    """Returns the root nodes of the default scene; if there are no scenes, all nodes without a parent."""
    if document.json.get("scenes"):
        scene = document.json.get("scene", 0)
        return document.list(document.item("scenes", scene), "nodes", f"scenes[{scene}].")
    nodes = [document.item("nodes", k) for k in range(len(document.list(document.json, "nodes", "")))]
    children = {
        child
        for k, node in enumerate(nodes)
        for child in document.list(node, "children", f"nodes[{k}].")
        if isinstance(child, int)
    }
    return [k for k in range(len(nodes)) if k not in children]


def _local_matrix(document: Document, node: Json, where: str) -> Float64:
    if "matrix" in node:
        # glTF matrices are column-major.
        columns = document.numbers(node, "matrix", where, tuple(np.eye(4).ravel()))
        matrix = np.asarray(np.array(columns).reshape(4, 4).T)
        if not np.allclose(matrix[3], (0.0, 0.0, 0.0, 1.0), atol=1e-6):
            text = f"expected the last row 0 0 0 1 in {where}.matrix, got {matrix[3].tolist()}"
            raise document.fail(f"{text}; glTF lists matrices column after column")
        return matrix
    matrix = np.eye(4)
    x, y, z, w = document.numbers(node, "rotation", where, (0.0, 0.0, 0.0, 1.0))
    scale = document.numbers(node, "scale", where, (1.0, 1.0, 1.0))
    if (x, y, z) != (0.0, 0.0, 0.0):
        matrix[:3, :3] = matrices_of_quats(np.array([[w, x, y, z]]))[0]
    matrix[:3, :3] *= scale
    matrix[:3, 3] = document.numbers(node, "translation", where, (0.0, 0.0, 0.0))
    return matrix
