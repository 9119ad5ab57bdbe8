"""Meshes by the integers that stand for them in tensors, and how their inside is told."""

from __future__ import annotations

import hashlib
import threading
from typing import Any
from weakref import WeakKeyDictionary

from lumigrad.client.client import Client
from lumigrad.client.compat.curobo.errors import CuroboArgumentError
from lumigrad.client.compat.curobo.values import triangles
from lumigrad.client.mesh import Mesh
from lumigrad.client.obstacle import Sign

_lock = threading.Lock()
_meshes: dict[int, Mesh] = {}
_signs: WeakKeyDictionary[Mesh, Sign] = WeakKeyDictionary()


def register_mesh(vertices: Any, faces: Any) -> int:
    """A handle of a mesh, for `mesh_idx`. The same mesh gets the same handle, in every process.

    Args:
        vertices: [V, 3] in the frame of the mesh, metres.
        faces: [F, 3] indices of vertices, or flat; counter-clockwise seen from outside.

    Returns:
        A number above 0 that an int64 holds. The mesh is kept until `unregister_mesh`.
    """
    mesh = Mesh(vertices, triangles(faces))
    digest = hashlib.sha256()
    for array in mesh.tensors.values():
        digest.update(str(array.shape).encode())
        digest.update(array.tobytes())
    handle = int.from_bytes(digest.digest()[:8], "little") >> 2 | 1
    with _lock:
        return handle if handle in _meshes else _keep(handle, mesh)


def unregister_mesh(handle: int) -> None:
    """Forgets a mesh here; workers forget what is not used."""
    with _lock:
        _meshes.pop(int(handle), None)


def registered_mesh(handle: int, argument: str) -> Mesh:
    """The mesh of a handle; the argument is for the error."""
    with _lock:
        mesh = _meshes.get(handle)
    if mesh is None:
        raise CuroboArgumentError.of(argument, f"expected a handle from register_mesh, got {handle}")
    return mesh


def sign_of(mesh: Mesh, client: Client) -> Sign:
    """How cuRobo tells inside from outside, or what is equal to that where it can be told faster.

    It asks three rays. They agree with the normals where a mesh is closed, and oriented so that its volume is positive.
    """
    with _lock:
        sign = _signs.get(mesh)
    if sign is None:
        report = client.put(mesh).report
        solid = report is not None and report.closed and report.oriented and report.volume > 0
        sign = "auto" if solid else "rays"
        with _lock:
            _signs[mesh] = sign
    return sign


def _keep(handle: int, mesh: Mesh) -> int:
    _meshes[handle] = mesh
    return handle
