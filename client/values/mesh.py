"""Triangle meshes, and the worker's report on a mesh."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from typing import Any

import numpy as np

from lumigrad.client.base.arguments import optional_name
from lumigrad.client.base.arrays import Float32, Float64, Int32, Tensors, float32_array, int32_array, to_numpy
from lumigrad.client.base.cautions import warn_of
from lumigrad.client.base.precision import lost_by, median_of, sample_of
from lumigrad.client.errors import InvalidArgument
from lumigrad.v1 import mesh_pb2


@dataclass(frozen=True)
class MeshReport:
    """Facts about a mesh after its vertices were welded by position. Lengths are in metres.

    Attributes:
        closed: whether every edge has two faces.
        oriented: whether the two faces of every edge run along it in opposite directions.
        vertices: number of vertices as given.
        welded_vertices: number of distinct positions.
        faces: number of faces as given.
        degenerate_faces: number of faces without area, which are left out.
        duplicate_faces: number of faces with the corners of another face. Repetitions with the same orientation are
            left out; so are those with the opposite one, in two-sided bodies whose remaining faces are closed.
        boundary_edges: number of edges with one face.
        nonmanifold_edges: number of edges with more than two faces.
        inconsistent_edges: number of edges along which two faces run in the same direction.
        low: [3] lower corner of the bounding box.
        high: [3] upper corner of the bounding box.
        volume: cubic metres, negative if faces look inward; meaningless for open meshes.
        area: square metres.
        rebuilt: whether the last update rebuilt the worker's search structure instead of refitting it.
        growth: surface of the search structure's boxes relative to the mesh, compared with when it was built; 1 at
            first, larger after updates.
        components: number of connected components: faces joined by edges with two faces. 0: the worker is older than
            this client and determines neither this nor the following.
        overlapping_components: number of closed and oriented components whose bounding box meets another component's.
        turned_components: number of closed and oriented components that are inside out without being cavities; the
            sign "auto" turns them.
        self_intersecting: whether a component encloses points more than once or from the wrong side; tested with up to
            1,024 points beside the faces of a closed and oriented mesh.
    """

    closed: bool
    oriented: bool
    vertices: int
    welded_vertices: int
    faces: int
    degenerate_faces: int
    duplicate_faces: int
    boundary_edges: int
    nonmanifold_edges: int
    inconsistent_edges: int
    low: tuple[float, ...]
    high: tuple[float, ...]
    volume: float
    area: float
    rebuilt: bool
    growth: float
    components: int = 0
    overlapping_components: int = 0
    turned_components: int = 0
    self_intersecting: bool = False

    @property
    def sign(self) -> str | None:
        """The method that the sign "auto" uses: "normals" or "winding"; None: the worker is too old to report it."""
        if not self.components:
            return None
        enclosed_twice = self.overlapping_components > 0 or self.self_intersecting
        return "normals" if self.oriented and not enclosed_twice else "winding"

    @property
    def remark(self) -> str:
        """The reason why the sign "auto" does more than look at the closest surface, in words; empty: it does not."""
        found = []
        if self.boundary_edges:
            found.append("its surface is not closed")
        elif self.nonmanifold_edges:
            found.append("at some edges more than two of its faces meet")
        elif not self.oriented:
            found.append("its faces are not all oriented alike")
        if self.overlapping_components:
            found.append(f"{self.overlapping_components:,} of its {self.components:,} parts overlap or lie close")
        if self.self_intersecting:
            found.append("its surface intersects itself")
        decides = [" and ".join(found) + ": the winding number decides what is inside"] if found else []
        if self.inconsistent_edges:
            decides.append("where neighbouring faces disagree, the inside may count as free: orient them alike")
        turned, parts = self.turned_components, self.components
        if turned:
            which = "it is" if parts == 1 else f"{turned:,} of its {parts:,} parts are"
            decides.append(f"{which} inside out and taken the other way round")
        return "; ".join(decides)

    @staticmethod
    def of(message: mesh_pb2.MeshReport) -> MeshReport:
        """Reads the worker's message."""
        values = {name: getattr(message, name) for name in MeshReport.__dataclass_fields__}
        return MeshReport(**{**values, "low": tuple(message.low), "high": tuple(message.high)})


@dataclass(frozen=True, eq=False, init=False)
class Mesh(Tensors):
    """A triangle mesh in its own frame. Anything array-like is accepted and kept read-only.

    The worker welds vertices at the same position and reports whether the mesh is closed and oriented
    (`SceneHandle.report`). Faces run counter-clockwise seen from outside. Arrays of float32 and int32 are not copied,
    so do not change them afterwards.

    Attributes:
        vertices: [V, 3] float32, metres.
        faces: [F, 3] int32, the vertex indices of each triangle; at least one.
        name: default name of obstacles with this mesh; it is not stored.

    Example:
        mesh = Mesh([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], [[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]])
    """

    vertices: Float32
    faces: Int32
    name: str | None = None

    def __init__(self, vertices: Any, faces: Any, name: str | None = None) -> None:
        places = to_numpy("vertices", vertices)
        vertices = float32_array("vertices", places, ("V", 3))
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
        vars(self).update(vertices=vertices, faces=faces, name=optional_name("name", name))
        first, second = (places[sample_of(faces)[:, corner]].astype(np.float64) for corner in (0, 1))
        named = "vertices" if name is None else f"vertices of {name!r}"
        warn_of(named, lost_by(places, median_of(np.linalg.norm(second - first, axis=1))))

    def __len__(self) -> int:
        """Returns the number of triangles."""
        return len(self.faces)

    def __repr__(self) -> str:
        named = "" if self.name is None else f", {self.name!r}"
        return f"Mesh({len(self.vertices)} vertices, {len(self)} triangles{named})"

    @cached_property
    def bounds(self) -> tuple[Float64, Float64]:
        """The lower and upper corner, [3] each, of the box around all triangles; metres."""
        used = self.vertices[self.faces.ravel()].astype(np.float64)
        return used.min(axis=0), used.max(axis=0)

    @staticmethod
    def load(path: str | PathLike[str], *, scale: float = 1.0) -> Mesh:
        """Reads an STL, OBJ, PLY or GLB file. Needs the extra `mesh`.

        Several geometries become one mesh, each placed as in the file's scene. Axes are unchanged: in GLB, y is up.

        Args:
            path: the file; its name without the suffix becomes the mesh's name.
            scale: metres per unit of the file: 0.001 for millimetres.

        Raises:
            InvalidArgument: the file is missing, damaged or of another kind; the text names the file.
            MissingPackage: the extra `mesh` is not installed.

        Example:
            mesh = Mesh.load(folder / "part.stl", scale=0.001)
        """
        from lumigrad.client.formats.mesh_files import load_mesh

        return load_mesh(path, scale)

    def save(self, path: str | PathLike[str]) -> None:
        """Writes an STL, OBJ, PLY or GLB file, by its suffix, in metres. Needs the extra `mesh`.

        Args:
            path: the file.

        Raises:
            InvalidArgument: the suffix is unknown.
            MissingPackage: the extra `mesh` is not installed.

        Example:
            mesh.save(folder / "part.stl")
        """
        from lumigrad.client.formats.mesh_files import save_mesh

        save_mesh(self, path)
