"""Obstacles of a world, drawn by the browsers."""

from __future__ import annotations

import numpy as np
import viser

from lumigrad.client.base.arrays import Float64
from lumigrad.client.values.rotations import rotated
from lumigrad.client.values.world import Cuboid, Obstacle, World

_COLOR = (126, 132, 144)
# Lights that add up to about pi show colours unchanged; brighter ones would wash out the colours of distances. viser's
# default lights are brighter, and their shadows and reflections take seconds without a graphics card.
_AMBIENT, _LAMP, _FILL = 1.2, 2.0, 0.6
_CORNERS = np.array([[x, y, z] for x in (-0.5, 0.5) for y in (-0.5, 0.5) for z in (-0.5, 0.5)])


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
    found = [np.zeros((0, 3))]
    for obstacle in world.obstacles:
        points = _points(obstacle)
        found.append(rotated(obstacle.pose[3:] / np.linalg.norm(obstacle.pose[3:]), points) + obstacle.pose[:3])
    return np.concatenate(found)


def _points(obstacle: Obstacle) -> Float64:
    if isinstance(obstacle.shape, Cuboid):
        return _CORNERS * obstacle.shape.size
    if obstacle.mesh is None:
        return np.zeros((0, 3))
    low, high = obstacle.mesh.bounds
    return np.asarray((low + high) / 2 + _CORNERS * (high - low))
