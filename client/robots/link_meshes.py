"""The shapes of a link that count in collisions as one mesh."""

from __future__ import annotations

from typing import Any

import numpy as np

from lumigrad.client.arrays import Float64
from lumigrad.client.extras import require
from lumigrad.client.mesh import Mesh
from lumigrad.client.robots.urdf import Urdf, resolved


def mesh_of(urdf: Urdf, link: str) -> Mesh:
    """All collision elements of a link in its frame: meshes from their files, boxes, cylinders and spheres made here.

    Raises:
        InvalidArgument: a file that is not there, or is no mesh.
    """
    vertices: list[Float64] = []
    faces: list[Any] = []
    count = 0
    for shape in urdf.shapes[link]:
        points, triangles = _triangles(urdf, shape.geometry)
        origin = np.eye(4) if shape.origin is None else np.asarray(shape.origin, np.float64)
        vertices.append(points @ origin[:3, :3].T + origin[:3, 3])
        faces.append(triangles + count)
        count += len(points)
    return Mesh(np.concatenate(vertices), np.concatenate(faces), name=link)


def _triangles(urdf: Urdf, geometry: Any) -> tuple[Float64, Any]:
    """Vertices [V, 3] in the element's frame, metres, and faces [F, 3]."""
    if geometry.mesh is None:
        made = _made(geometry)
        return np.asarray(made.vertices, np.float64), np.asarray(made.faces)
    mesh = Mesh.load(resolved(urdf.path, geometry.mesh.filename))
    scale = np.broadcast_to(1.0 if geometry.mesh.scale is None else geometry.mesh.scale, 3).astype(np.float64)
    faces = np.asarray(mesh.faces)
    # A mirror image has its faces the other way around.
    return np.asarray(mesh.vertices, np.float64) * scale, faces[:, ::-1] if np.prod(scale) < 0 else faces


def _made(geometry: Any) -> Any:
    creation = require("trimesh.creation", "robot", "collision meshes")
    if geometry.box is not None:
        return creation.box(extents=geometry.box.size)
    if geometry.cylinder is not None:
        return creation.cylinder(radius=geometry.cylinder.radius, height=geometry.cylinder.length)
    return creation.icosphere(radius=geometry.sphere.radius)
