"""A robot's spheres in all browsers, coloured by how far they are from obstacles."""

from __future__ import annotations

import numpy as np
import trimesh
import viser

from lumigrad.client.arrays import Float64
from lumigrad.client.viewer.color_scale import DISTANCES, Levels

_SUBDIVISIONS = 3
_UNKNOWN = (168, 174, 184)
_LINE = (255, 255, 255)


class SphereView:
    """S balls that move and change their colours."""

    def __init__(self, server: viser.ViserServer, spheres: Float64) -> None:
        """Draws them.

        Args:
            server: whose browsers draw.
            spheres: [S, 4] centres and radii at first, metres.
        """
        self._scene = server.scene
        ball = trimesh.creation.icosphere(subdivisions=_SUBDIVISIONS)
        turns = np.zeros((len(spheres), 4))
        turns[:, 0] = 1.0
        self._balls = server.scene.add_batched_meshes_simple(
            "/robot", ball.vertices, ball.faces, turns, spheres[:, :3], batched_scales=spheres[:, 3],
            batched_colors=np.tile(np.array(_UNKNOWN, np.uint8), (len(spheres), 1)), cast_shadow=False,
        )  # fmt: skip
        self._line: viser.LineSegmentsHandle | None = None

    def move(self, spheres: Float64) -> None:
        """[S, 4] elsewhere; their radii stay."""
        self._balls.batched_positions = spheres[:, :3].astype(np.float32)

    def paint(self, clearances: Float64, span: float) -> None:
        """Colours: [S] distances of surfaces, metres; from `span` inside to as much outside."""
        self._balls.batched_colors = colors_of(clearances, span)

    def mark(self, start: Float64, end: Float64) -> None:
        """Draws a line between two points [3], the only one."""
        points = np.stack([start, end])[None].astype(np.float32)
        if self._line is None:
            self._line = self._scene.add_line_segments(
                "/closest", points, _LINE, thickness=3.0, thickness_units="screen"
            )
        else:
            self._line.points = points


def colors_of(clearances: Float64, span: float) -> Levels:
    """[S, 3] colours of distances [S], metres: those of the legend."""
    return DISTANCES.levels(np.clip(clearances / span, -1.0, 1.0) / 2 + 0.5)
