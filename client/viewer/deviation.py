"""A mesh whose vertices have the colours of their signed distances to obstacles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import trimesh
import viser

from lumigrad.client.base.arrays import Float64
from lumigrad.client.client import Client
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.values.rotations import rotated
from lumigrad.client.values.world import Obstacle, World
from lumigrad.client.viewer.collisions import colors_of
from lumigrad.client.viewer.modes import DISTANCES

# Vertices of a call.
_CHUNK = 65536
_SPANS = 100


class Deviation:
    """The mesh and its legend, shared by all browsers.

    Attributes:
        vertices: [V, 3] metres, world frame.
        distances: [V] signed distances of the vertices to the closest obstacle, metres; negative inside.
    """

    def __init__(self, server: viser.ViserServer, client: Client, world: World, obstacles: Sequence[Obstacle]) -> None:
        """Measures and shows the mesh.

        Args:
            server: the server whose browsers show it.
            client: a client of the worker that measures.
            world: the obstacles to measure distances to.
            obstacles: the meshes of one file, drawn as one.

        Raises:
            InvalidArgument: there is no mesh among them.
        """
        meshes = [(obstacle, obstacle.mesh) for obstacle in obstacles if obstacle.mesh is not None]
        if not meshes:
            raise InvalidArgument.of("compare", "expected the file of a mesh, got one without triangles")
        placed = [
            trimesh.Trimesh(_placed(obstacle, np.asarray(mesh.vertices, np.float64)), mesh.faces, process=False)
            for obstacle, mesh in meshes
        ]
        self._server = server
        self._mesh = cast(trimesh.Trimesh, trimesh.util.concatenate(placed))
        self.vertices: Float64 = np.asarray(self._mesh.vertices, np.float64)
        points = np.column_stack([self.vertices, np.zeros(len(self.vertices))])
        handle = client.put(world)
        self.distances: Float64 = np.concatenate(
            [client.query(handle, points[start : start + _CHUNK]).distance for start in range(0, len(points), _CHUNK)]
        ).astype(np.float64)
        largest = max(float(np.abs(self.distances).max()), 1e-6)
        self._legend = server.gui.add_html("")
        span = float(np.percentile(np.abs(self.distances), 98)) or largest
        self._span = server.gui.add_slider("Colours up to (m)", largest / _SPANS, largest, largest / _SPANS, span)
        self._span.on_update(lambda event: self._show())
        self._show()

    def _show(self) -> None:
        span = self._span.value
        colors = colors_of(self.distances, span)
        self._mesh.visual = trimesh.visual.ColorVisuals(self._mesh, vertex_colors=colors)
        self._server.scene.add_mesh_trimesh("/compared", self._mesh, cast_shadow=False, receive_shadow=False)
        marks = [f"{share * span:+.3g} m" if share else "0" for share in (-1.0, -0.5, 0.0, 0.5, 1.0)]
        self._legend.content = DISTANCES.legend("signed distance to the closest obstacle, negative inside", marks)


def _placed(obstacle: Obstacle, vertices: Float64) -> Float64:
    pose = obstacle.pose
    return np.asarray(rotated(pose[3:] / np.linalg.norm(pose[3:]), vertices) + pose[:3])
