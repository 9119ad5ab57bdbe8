"""Pictures of a robot among obstacles, drawn by the sphere engine: every surface is a cloud of small, lit spheres."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lumigrad.client import Camera, Client, Cuboid, Mesh, Spheres, World
from lumigrad.client.pictures import write_image
from lumigrad.client.robots import Robot

Array = npt.NDArray[np.float64]

WIDTH, HEIGHT = 800, 640
CAMERA = Camera.look_at((2.4, 0.7, 1.6), (0.3, 0.09, 0.44), up=(0, 0, 1), fov_degrees=35, width=WIDTH, height=HEIGHT)
_BACKGROUND = (0.96, 0.97, 0.98)
_LIGHT = np.array([0.45, 0.35, 0.82])
_SHOWN = 9
_FIRST, _LAST = np.array([0.93, 0.62, 0.20]), np.array([0.16, 0.44, 0.80])
_HIT = np.array([0.85, 0.10, 0.10])
_DOT = 0.007

# Points, their normals, their colours: [N, 3] each.
Cloud = tuple[Array, Array, Array]


def portrait(client: Client, robot: Robot, world: World, ways: Sequence[torch.Tensor], path: Path) -> None:
    """Draws trajectories [H, dof] side by side, from orange to blue; what touches an obstacle is red."""
    scenery = [surface(obstacle) for obstacle in world.obstacles]
    pictures = [draw(client, [*scenery, *_robots(client, robot, world, way)]) for way in ways]
    write_image(path, np.concatenate(pictures, axis=1))


def draw(client: Client, clouds: Sequence[Cloud], camera: Camera = CAMERA) -> Array:
    """Returns the picture [H, W, 3] of dots on surfaces in the light of one lamp."""
    points, normals, colors = (np.concatenate(parts) for parts in zip(*clouds, strict=True))
    shade = 0.55 + 0.45 * np.clip(normals @ (_LIGHT / np.linalg.norm(_LIGHT)), -0.4, 1)
    dots = Spheres(points, np.clip(colors * shade[:, None], 0, 1), np.full(len(points), _DOT))
    frame = client.render(dots, camera, gamma=1e-4, min_depth=0.5, max_depth=8.0, background=_BACKGROUND)
    return np.asarray(frame.color)


def _robots(client: Client, robot: Robot, world: World, way: torch.Tensor) -> list[Cloud]:
    """Returns some of the robot's states, each sphere as dots on its surface."""
    dots, drawn = ball(500), set()
    clouds = []
    for index in np.linspace(0, len(way) - 1, _SHOWN).round().astype(int):
        spheres = robot.spheres(way[index]).double().numpy()
        free = client.query(world, spheres).distance - spheres[:, 3]
        color = _FIRST + index / (len(way) - 1) * (_LAST - _FIRST)
        for sphere, distance in zip(spheres, free, strict=True):
            place = tuple(sphere.round(4))
            # Spheres that stand still are drawn once.
            if place in drawn:
                continue
            drawn.add(place)
            own = np.broadcast_to(_HIT if distance < 0 else color, dots.shape)
            clouds.append((sphere[:3] + sphere[3] * dots, dots, own))
    return clouds


def surface(obstacle: Any) -> Cloud:
    """Returns dots on an obstacle, in the world."""
    shape = obstacle.shape
    points, normals = _on_mesh(shape) if isinstance(shape, Mesh) else _on_box(shape)
    w, axis = obstacle.pose[3], obstacle.pose[4:]
    points, normals = (v + 2 * np.cross(axis, w * v + np.cross(axis, v)) for v in (points, normals))
    color = (0.80, 0.81, 0.83) if obstacle.name == "floor" else (0.55, 0.62, 0.58)
    return points + obstacle.pose[:3], normals, np.broadcast_to(color, points.shape)


def _on_mesh(mesh: Mesh) -> tuple[Array, Array]:
    """Returns random points and their normals, evenly over the area."""
    generator = np.random.default_rng(0)
    a, b, c = np.moveaxis(mesh.vertices[mesh.faces].astype(float), 1, 0)
    across = np.cross(b - a, c - a)
    areas = np.linalg.norm(across, axis=1) / 2
    count = int(6 * areas.sum() / _DOT**2)
    chosen = generator.choice(len(areas), count, p=areas / areas.sum())
    s, t = generator.random((2, count, 1))
    s, t = np.where(s + t > 1, 1 - s, s), np.where(s + t > 1, 1 - t, t)
    points = a[chosen] + s * (b - a)[chosen] + t * (c - a)[chosen]
    return points, across[chosen] / (2 * areas[chosen, None])


def _on_box(box: Cuboid) -> tuple[Array, Array]:
    """Returns points on a lattice on the box's six faces, and their normals."""
    half = np.asarray(box.size, float) / 2
    points, normals = [], []
    for axis in range(3):
        others = [other for other in range(3) if other != axis]
        lines = [np.arange(-half[other], half[other], _DOT) for other in others]
        grid = np.stack(np.meshgrid(*lines, indexing="ij"), -1).reshape(-1, 2)
        for side in (-1.0, 1.0):
            face = np.full((len(grid), 3), side * half[axis])
            face[:, others] = grid
            points.append(face)
            normals.append(np.broadcast_to(side * np.eye(3)[axis], face.shape))
    return np.concatenate(points), np.concatenate(normals)


def ball(count: int) -> Array:
    """Returns evenly spaced points on the unit sphere (Fibonacci)."""
    height = 1 - (2 * np.arange(count) + 1) / count
    angle = np.pi * (1 + 5**0.5) * np.arange(count)
    reach = np.sqrt(1 - height**2)
    return np.stack([reach * np.cos(angle), reach * np.sin(angle), height], -1)
