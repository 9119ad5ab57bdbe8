"""A triangle mesh as a value. Its file formats are in `mesh_files`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from typing import Any

import numpy as np

from lumigrad.client.arguments import optional_name
from lumigrad.client.arrays import Float32, Float64, Int32, float32_array, int32_array
from lumigrad.client.errors import InvalidArgument


@dataclass(frozen=True, eq=False, init=False)
class Mesh:
    """Triangles in a frame of their own. Anything array-like is accepted and kept read-only.

    Vertices at the same position are welded by the worker, which then reports whether the mesh is closed and oriented
    (`SceneHandle.report`). Outside is where faces run counter-clockwise. Arrays that are float32 and int32 already are
    not copied, so do not change them afterwards.

    Attributes:
        vertices: [V, 3] float32, metres.
        faces: [F, 3] int32, the vertices of each triangle; at least one.
        name: what obstacles of it are called that have no name of their own; it is not stored.
    """

    vertices: Float32
    faces: Int32
    name: str | None = None

    def __init__(self, vertices: Any, faces: Any, name: str | None = None) -> None:
        vertices = float32_array("vertices", vertices, ("V", 3))
        finite = np.isfinite(vertices).all(axis=1)
        if not finite.all():
            row = int(finite.argmin())
            raise InvalidArgument.of(
                "vertices",
                f"expected finite values, got {vertices[row].tolist()} in row {row} and {(~finite).sum() - 1} others",
            )
        faces = int32_array("faces", faces, ("F", 3))
        if not len(faces):
            raise InvalidArgument.of("faces", "expected at least one triangle, got none")
        wrong = ((faces < 0) | (faces >= len(vertices))).any(axis=1)
        if wrong.any():
            row = int(wrong.argmax())
            raise InvalidArgument.of(
                "faces",
                f"expected indices of the {len(vertices)} vertices, 0 to {len(vertices) - 1}, got "
                f"{faces[row].tolist()} in row {row}",
            )
        object.__setattr__(self, "vertices", vertices)
        object.__setattr__(self, "faces", faces)
        object.__setattr__(self, "name", optional_name("name", name))

    def __len__(self) -> int:
        """The number of triangles."""
        return len(self.faces)

    def __repr__(self) -> str:
        named = "" if self.name is None else f", {self.name!r}"
        return f"Mesh({len(self.vertices)} vertices, {len(self)} triangles{named})"

    @property
    def tensors(self) -> dict[str, Float32 | Int32]:
        """The arrays by name, in the order of the contract."""
        return {"vertices": self.vertices, "faces": self.faces}

    @cached_property
    def bounds(self) -> tuple[Float64, Float64]:
        """Lower and upper corner, [3] each, of the box around all triangles; metres."""
        used = self.vertices[self.faces.ravel()].astype(np.float64)
        return used.min(axis=0), used.max(axis=0)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.vertices.nbytes + self.faces.nbytes

    @staticmethod
    def load(path: str | PathLike[str], *, scale: float = 1.0) -> Mesh:
        """Reads an STL, OBJ, PLY or GLB file. Needs the extra `mesh`.

        Several geometries become one mesh, each where its scene places it. Axes are left as they are: GLB has y up.

        Args:
            path: the file; its name without the ending becomes the mesh's.
            scale: metres per unit of the file: 0.001 for millimetres.
        """
        from lumigrad.client.mesh_files import load_mesh

        return load_mesh(path, scale)

    def save(self, path: str | PathLike[str]) -> None:
        """Writes an STL, OBJ, PLY or GLB file, in metres, whichever the name says. Needs the extra `mesh`."""
        from lumigrad.client.mesh_files import save_mesh

        save_mesh(self, path)
