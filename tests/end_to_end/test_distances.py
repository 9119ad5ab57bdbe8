"""Distances and costs from a worker agree with references, and have the bits that the kernels give in process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lumigrad.client import Client, Cuboid, Mesh, Obstacle, VoxelGrid, World
from lumigrad.client.torch import mesh_distance
from support.backends.mesh_engines import cpu
from support.closeness import assert_image
from support.meshes import oracle as mesh_oracle
from support.meshes import shapes
from support.meshes.case import CuboidShape, MeshCase, MeshShape, Shape
from support.meshes.oracle import assert_reproduced
from support.meshes.runs import run, with_options
from support.spheres import oracle


def remote_world(case: MeshCase) -> World:
    """A case's obstacles; a shape that occurs several times is one value."""
    made: dict[int, Any] = {}

    def value(shape: Shape) -> Any:
        if id(shape) not in made:
            if isinstance(shape, MeshShape):
                made[id(shape)] = Mesh(shape.vertices, shape.faces)
            elif isinstance(shape, CuboidShape):
                made[id(shape)] = Cuboid(shape.size)
            else:
                made[id(shape)] = VoxelGrid(shape.distances, shape.voxel_size)
        return made[id(shape)]

    obstacles = [
        Obstacle(value(one.shape), one.pose, enabled=one.enabled, environment=one.environment, sign=one.sign)  # type: ignore[arg-type]
        for one in case.placed
    ]
    return World(obstacles, case.environments)


def remote_settings(case: MeshCase) -> dict[str, Any]:
    """A case's settings, for `Client.query`."""
    return {**vars(case.options), "environments": case.rows}


FILES = oracle.files("meshes")
pytestmark = pytest.mark.skipif(not FILES, reason=oracle.ABSENT)
WANTED = ("spheres", "poses", "weight")
EXACT = {"semantics": "exact", "max_distance": None, "samples": 32}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_costs_computed_elsewhere_come_from_a_worker(path: Path, client: Client) -> None:
    found = mesh_oracle.load(path)
    world = client.put(remote_world(found.case))
    settings = remote_settings(found.case)
    asked = client.query(world, found.case.spheres, outputs=("cost", "gradient"), retain=True, **settings)
    assert_reproduced(found, asked.cost, asked.gradient)
    gradients = asked.backward(cost=np.ones(found.case.shape, np.float32))
    assert_reproduced(found, asked.cost, gradients.spheres)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_exact_results_have_the_bits_of_the_kernels(path: Path, client: Client) -> None:
    case = with_options(mesh_oracle.load(path).case, **EXACT)
    random = np.random.default_rng(4)
    upstream = {name: random.standard_normal(case.shape).astype(np.float32) for name in ("cost", "distance")}
    outputs = ("cost", "gradient", "exhausted", "distance", "normal", "closest", "face", "beyond")
    expected = run(cpu(), case, outputs=outputs, upstream=upstream, wanted=WANTED)
    asked = client.query(remote_world(case), case.spheres, outputs=outputs, retain=True, **remote_settings(case))
    gradients = asked.backward(**upstream, wanted=WANTED)
    for name in outputs:
        assert asked[name].tobytes() == expected.outputs[name].tobytes(), name
    for name in WANTED:
        assert gradients[name].tobytes() == expected.gradients[name].tobytes(), name


def test_the_operator_differentiates_what_a_worker_computes(client: Client) -> None:
    found = mesh_oracle.load(next(path for path in FILES if path.stem.startswith("05")))
    assert found.differences is not None
    options = found.case.options
    spheres = torch.from_numpy(found.case.spheres).requires_grad_()
    result = mesh_distance(
        spheres,
        remote_world(found.case),
        activation_distance=options.activation_distance,
        weight=options.weight,
        client=client,
    )
    result.cost.sum().backward()
    assert spheres.grad is not None
    ok = found.ok_gradient
    assert_image(spheres.grad.numpy()[ok], found.differences[ok], 2e-3 * options.weight)


@pytest.mark.parametrize("sign", ["auto", "winding", "rays"])
def test_the_smallest_meshes_have_their_distances(sign: Any, client: Client) -> None:
    unit = 1.1e-6
    solid = shapes.box((1.0, 1.0, 1.0))
    world = World([Obstacle(Mesh(solid.vertices * unit, solid.faces), sign=sign)])
    places = np.random.default_rng(0).uniform(-1, 1, (200, 3))
    outside = np.abs(places) - 0.5
    expected = np.linalg.norm(np.maximum(outside, 0), axis=1) + np.minimum(outside.max(axis=1), 0)
    found = client.query(world, np.pad(places * unit, ((0, 0), (0, 1))))
    np.testing.assert_allclose(np.ravel(found.distance) / unit, expected, atol=1e-5)
