"""What a worker found out about a mesh when it was stored."""

from __future__ import annotations

from dataclasses import dataclass

from lumigrad.v1 import mesh_pb2


@dataclass(frozen=True)
class MeshReport:
    """A mesh after its vertices were welded by position. Lengths are in metres, of the mesh's own frame.

    Attributes:
        closed: every edge has two faces.
        oriented: these run along it in opposite directions.
        vertices: as given.
        welded_vertices: distinct positions.
        faces: as given.
        degenerate_faces: without an area; they are left out.
        duplicate_faces: with the corners of another; repetitions of the same orientation are left out.
        boundary_edges: with one face.
        nonmanifold_edges: with more than two.
        inconsistent_edges: with two faces that run along them in the same direction.
        low: lower corner of the box around it.
        high: upper corner.
        volume: cubic metres, negative where faces look inward; of open meshes it says little.
        area: square metres.
        rebuilt: the last update built the worker's search structure anew instead of fitting it.
        growth: surface of the boxes of that structure to that of the mesh, relative to when it was built; 1, more after
            updates.
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

    @staticmethod
    def of(message: mesh_pb2.MeshReport) -> MeshReport:
        """Reads the worker's message."""
        values = {name: getattr(message, name) for name in MeshReport.__dataclass_fields__}
        return MeshReport(**{**values, "low": tuple(message.low), "high": tuple(message.high)})
