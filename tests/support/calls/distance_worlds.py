"""A world with all kinds of obstacles, on a worker and in process, and spheres that move through it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from lumigrad.kernels import meshes
from lumigrad.protos.tensors import PayloadWriter
from support.calls.distance_calls import (
    DistanceClient,
    Floats,
    cuboid,
    grid,
    mesh_arrays,
    mesh_obstacle,
    pose_of,
    world_of,
)
from support.calls.raw_calls import Array, RawClient
from support.meshes.shapes import open_box, torus

TORUS = mesh_arrays(torus())
OPEN = mesh_arrays(open_box())
VALUES = np.linspace(-0.2, 0.4, 60, dtype=np.float32).reshape(3, 4, 5)
TURNED = (0.4, 0.1, -0.2, 0.9, 0.1, -0.3, 0.2)
# Numbers that float32 represents exactly, because settings are sent as float32.
NEAR = {"activation_distance": 0.125, "max_distance": 0.25}
SWEPT: Mapping[str, Any] = {"activation_distance": 0.125, "sweep": True, "speed_metric": True, "time_step": 0.25}


def local_world() -> meshes.World:
    """The world of `stored`, in process."""
    solids = [
        meshes.Mesh.build(*(torch.from_numpy(arrays[name]) for name in ("vertices", "faces")))
        for arrays in (TORUS, OPEN)
    ]
    return meshes.World(
        [
            meshes.Instance(solids[0]),
            meshes.Instance(solids[1], TURNED, sign="winding"),
            meshes.Instance(meshes.Cuboid((0.5, 0.25, 0.75)), (0, 1, 0, 1, 0, 0, 0), environment=1),
            meshes.Instance(meshes.Grid(torch.from_numpy(VALUES), 0.25), (-1, 0, 0, 1, 0, 0, 0), environment=1),
            meshes.Instance(solids[0], (0, 0, 1, 1, 0, 0, 0), enabled=False),
        ],
        environments=2,
    )


def stored(client: RawClient, distances: DistanceClient) -> str:
    """Stores a world with all kinds of obstacles; returns its scene_id."""
    first, second = (client.put(arrays).scene.scene_id for arrays in (TORUS, OPEN))
    payload = PayloadWriter()
    world = world_of(
        mesh_obstacle(first),
        mesh_obstacle(second, pose=pose_of(*TURNED), sign=4),
        cuboid(0.5, 0.25, 0.75, pose=pose_of(0, 1, 0), environment=1),
        grid(VALUES, 0.25, payload, pose=pose_of(-1, 0, 0), environment=1),
        mesh_obstacle(first, pose=pose_of(0, 0, 1), disabled=True),
    )
    return distances.put(world, payload).scene.scene_id


def ways(batches: int = 3, horizon: int = 4, count: int = 20, seed: int = 0) -> Floats:
    """Spheres [B, H, S, 4] that move through the world."""
    rng = np.random.default_rng(seed)
    start, end = rng.uniform(-1, 1, (2, batches, 1, count, 3))
    step = np.linspace(0, 1, horizon)[None, :, None, None]
    radius = rng.uniform(-0.02, 0.1, (batches, horizon, count, 1))
    return np.concatenate([start + step * (end - start), radius], -1).astype(np.float32)


NUMBERS = np.array([0, 1, 0], np.int32)


def locally(spheres: Floats, settings: meshes.Settings, outputs: tuple[str, ...], **options: Any) -> meshes.Evaluation:
    names = ["instance" if name == "obstacle" else name for name in outputs]
    numbers = torch.from_numpy(NUMBERS)
    return meshes.evaluate(
        torch.from_numpy(spheres), local_world(), settings, environments=numbers, outputs=names, **options
    )


def assert_same(found: Mapping[str, Array], expected: Mapping[str, torch.Tensor]) -> None:
    assert set(found) == {"obstacle" if name == "instance" else name for name in expected}
    for name, tensor in expected.items():
        array = found["obstacle" if name == "instance" else name]
        assert (array.dtype, array.shape) == (tensor.numpy().dtype, tuple(tensor.shape)), name
        assert array.tobytes() == tensor.numpy().tobytes(), name
