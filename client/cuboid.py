"""A box as an obstacle, whose distances are exact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lumigrad.client.arrays import Float64, float64_array
from lumigrad.client.errors import InvalidArgument


@dataclass(frozen=True, eq=False, init=False)
class Cuboid:
    """A box around the origin of its frame, its edges along the axes.

    Attributes:
        size: [3] lengths of the edges, metres, > 0.
    """

    size: Float64

    def __init__(self, size: Any) -> None:
        edges = float64_array("size", size, (3,))
        if not (edges > 0).all():
            raise InvalidArgument.of("size", f"expected three lengths > 0, got {edges.tolist()}")
        object.__setattr__(self, "size", edges)

    def __repr__(self) -> str:
        return f"Cuboid({' x '.join(f'{edge:g}' for edge in self.size)} m)"
