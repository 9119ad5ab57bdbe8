"""What registration found out about a mesh."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Report:
    """Of a mesh as it was given; lengths in metres.

    Attributes:
        vertices, faces: As given.
        welded_vertices: Distinct positions.
        degenerate_faces: Without an area; no query finds them.
        duplicate_faces: With the corners of another. Repetitions of the same orientation are left out.
        boundary_edges: Of one face.
        nonmanifold_edges: Of more than two faces.
        inconsistent_edges: Of two faces that run along it in the same direction.
        closed: Every edge has two faces.
        oriented: The faces of every edge run along it in opposite directions.
        low, high: Corners of the bounding box.
        volume: Signed, cubic metres: negative if faces turn inward. Of an open mesh it means nothing.
        area: Square metres.
    """

    vertices: int
    faces: int
    welded_vertices: int
    degenerate_faces: int
    duplicate_faces: int
    boundary_edges: int
    nonmanifold_edges: int
    inconsistent_edges: int
    closed: bool
    oriented: bool
    low: tuple[float, float, float]
    high: tuple[float, float, float]
    volume: float
    area: float

    @staticmethod
    def of(found: Mapping[str, Any]) -> Report:
        """From the extension's."""
        return Report(**found)
