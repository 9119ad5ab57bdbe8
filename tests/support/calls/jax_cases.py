"""Small inputs for the JAX functions, as NumPy arrays."""

from __future__ import annotations

import numpy as np

from lumigrad.client import Cuboid, Mesh, Obstacle, World
from support.meshes.shapes import box

Arrays = dict[str, np.ndarray]
WIDTH, HEIGHT, COUNT, CAMERAS = 24, 20, 30, 2


def gaussians(degree: int | None = 1) -> Arrays:
    random = np.random.default_rng(4)
    views = np.tile(np.eye(4), (CAMERAS, 1, 1))
    views[1, 0, 3] = 0.3
    colors = random.uniform(size=(COUNT, 3)) if degree is None else random.normal(size=(COUNT, (degree + 1) ** 2, 3))
    arrays = {
        "means": random.uniform((-1, -1, 3), (1, 1, 5), (COUNT, 3)),
        "quats": random.normal(size=(COUNT, 4)),
        "scales": random.uniform(0.05, 0.25, (COUNT, 3)),
        "opacities": random.uniform(0.2, 0.9, COUNT),
        "colors": colors,
        "viewmats": views,
        "Ks": np.tile(np.array([[20.0, 0, 12], [0, 20, 10], [0, 0, 1]]), (CAMERAS, 1, 1)),
        "background": random.uniform(size=(CAMERAS, 3)),
    }
    return {name: array.astype(np.float32) for name, array in arrays.items()}


def spheres() -> Arrays:
    random = np.random.default_rng(5)
    arrays = {
        "positions": random.uniform((-2, -2, 15), (2, 2, 25), (COUNT, 3)),
        "colors": random.uniform(size=(COUNT, 3)),
        "radii": random.uniform(0.3, 0.9, COUNT),
        "opacities": random.uniform(0.3, 1, COUNT),
        "cam_params": np.array([0, 0, 0, 0.05, -0.02, 0.01, 5.0, 2.0]),
        "background": np.array([0.2, 0.4, 0.9]),
    }
    return {name: array.astype(np.float32) for name, array in arrays.items()}


def world() -> World:
    shape = box()
    return World(
        [
            Obstacle(Mesh(shape.vertices, shape.faces), name="box"),
            Obstacle(Cuboid((0.5, 2, 0.3)), (1, 0, 0, 1, 0, 0, 0)),
        ]
    )


def rows(*lead: int) -> np.ndarray:
    return np.random.default_rng(6).uniform((-1, -1, -1, 0.05), (1, 1, 1, 0.2), (*lead, 6, 4)).astype(np.float32)


GAUSSIANS = {"width": WIDTH, "height": HEIGHT, "sh_degree": 1}
SPHERES = {"width": WIDTH, "height": HEIGHT, "gamma": 0.1, "max_depth": 40.0}
COSTS = {"activation_distance": 0.1, "sweep": True, "speed_metric": True, "time_step_s": 0.1}
