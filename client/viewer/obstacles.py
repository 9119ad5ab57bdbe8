"""Obstacles of a world, drawn by the browsers, and a mesh that is compared with them."""

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
from lumigrad.client.values.world import Cuboid, Obstacle, World
from lumigrad.client.viewer.collisions import colors_of, legend_of

_COLOR = (126, 132, 144)
# Lights that add up to about pi show colours unchanged; brighter ones would wash out the colours of distances. viser's
# default lights are brighter, and their shadows and reflections take seconds without a graphics card.
_AMBIENT, _LAMP, _FILL = 1.2, 2.0, 0.6
_CORNERS = np.array([[x, y, z] for x in (-0.5, 0.5) for y in (-0.5, 0.5) for z in (-0.5, 0.5)])
# Vertices of a call, and positions of the slider of colours.
_CHUNK, _SPANS = 65536, 100


def show_world(server: viser.ViserServer, world: World, opacity: float | None = None) -> None:
    """Draws the enabled obstacles, except grids of distances; with an opacity below 1 what is inside shows through."""
    server.scene.configure_default_lights(enabled=False, cast_shadow=False)
    server.scene.configure_environment_map(None)
    server.scene.add_light_ambient("/lights/all around", intensity=_AMBIENT)
    server.scene.add_light_directional("/lights/lamp", intensity=_LAMP, position=(1.0, -2.0, 3.0))
    server.scene.add_light_directional("/lights/fill", intensity=_FILL, position=(-2.0, 1.5, 0.5))
    for index, obstacle in enumerate(world.obstacles):
        if not obstacle.enabled:
            continue
        name, place = f"/world/{index}", obstacle.pose
        wxyz, position = place[3:] / np.linalg.norm(place[3:]), place[:3]
        mesh = obstacle.mesh
        if isinstance(obstacle.shape, Cuboid):
            x, y, z = map(float, obstacle.shape.size)
            server.scene.add_box(
                name,
                color=_COLOR,
                dimensions=(x, y, z),
                wxyz=wxyz,
                position=position,
                cast_shadow=False,
                opacity=opacity,
            )
        elif mesh is not None:
            server.scene.add_mesh_simple(
                name, mesh.vertices, mesh.faces, color=_COLOR, flat_shading=True, side="double",
                wxyz=wxyz, position=position, cast_shadow=False, opacity=opacity,
            )  # fmt: skip


def corners(world: World) -> Float64:
    """Returns [N, 3], the corners of the obstacles' bounding boxes, metres."""
    found = [_placed(obstacle, _points(obstacle)) for obstacle in world.obstacles]
    return np.concatenate([np.zeros((0, 3)), *found])


def _points(obstacle: Obstacle) -> Float64:
    if isinstance(obstacle.shape, Cuboid):
        return _CORNERS * obstacle.shape.size
    if obstacle.mesh is None:
        return np.zeros((0, 3))
    low, high = obstacle.mesh.bounds
    return np.asarray((low + high) / 2 + _CORNERS * (high - low))


class Deviation:
    """A mesh in the colours of its signed distances to obstacles, and its legend, shared by all browsers.

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
        self._legend.content = legend_of("signed distance to the closest obstacle, negative inside", span)


def _placed(obstacle: Obstacle, points: Float64) -> Float64:
    """Returns points [N, 3] of an obstacle's frame in the world frame."""
    position, quaternion = np.split(obstacle.pose, [3])
    return np.asarray(rotated(quaternion / np.linalg.norm(quaternion), points) + position)
