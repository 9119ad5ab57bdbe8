"""Signed distances on grids: at the promised places, with the values of the reference."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from support.backends.mesh_engines import Engine
from support.closeness import assert_image
from support.meshes.case import Doubles, MeshCase, Options, Placed
from support.meshes.cases import TURNED, case_of, kinds, three, worlds
from support.meshes.obstacles import Obstacle
from support.meshes.runs import run, world_of
from support.meshes.shapes import ell

BOX = (0.1, -0.05, 0.02, 0.8, 0.3, -0.4, 0.331662479)
EDGES, SIZE = (0.9, 0.72, 0.6), 0.06


def centres(counts: tuple[int, ...], origin: Doubles) -> torch.Tensor:
    """Centres of voxels in the world [nx ny nz, 3], the first at `origin` in the box's frame, in voxels."""
    steps = np.array(list(itertools.product(*(range(count) for count in counts))))
    local = torch.from_numpy((steps + origin) * SIZE)
    box = Obstacle(Placed(ell(), BOX))
    return local @ box.rotation().T + box.pose[:3]


def distances(placed: list[Placed], points: torch.Tensor) -> tuple[Doubles, Doubles]:
    """Returns the distances to the closest obstacle, and where they are certain."""
    seen = [Obstacle(one).look(points) for one in placed]
    least = torch.stack([one.distance for one in seen]).amin(0)
    return least.numpy(), torch.stack([one.sure for one in seen]).all(0).numpy()


def test_fields_have_the_distances_of_their_places(mesh_engine: Engine) -> None:
    case = case_of("field", *kinds())
    world = world_of(mesh_engine, case)
    values = mesh_engine.esdf(world, BOX, EDGES, SIZE).numpy()
    counts = (15, 12, 10)
    assert values.shape == counts and values.dtype == np.float32
    expected, sure = distances(list(case.placed), centres(counts, (1 - np.array(counts)) / 2))
    assert_image(values.ravel()[sure], expected[sure], 1e-6)
    assert (values < 0).any() and (values > 0.1).any()
    near = mesh_engine.esdf(world, BOX, EDGES, SIZE, max_distance=0.1).numpy()
    assert_image(near, np.minimum(values, np.float32(0.1)), 1e-6)


def test_fields_as_curobo_has_them_are_positive_inside_and_end(mesh_engine: Engine) -> None:
    case = case_of("field of meshes", *three())
    world = world_of(mesh_engine, case)
    options = {"semantics": "curobo_field"}
    values = mesh_engine.esdf(world, BOX, EDGES, SIZE, max_distance=0.1, **options).numpy()
    counts = (15, 12, 10)
    # Centres are at (k - round(L / 2v)) v - v / 2, k = 1 ..: half a voxel off if their number is odd.
    origin = 0.5 - np.round(np.array(EDGES) / (2 * SIZE))
    expected, sure = distances(list(case.placed), centres(counts, origin))
    within = np.abs(expected) < 0.1 - 1e-6
    assert 0.1 < within.mean() < 0.9
    assert_image(values.ravel()[sure & within], -expected[sure & within], 1e-6)
    outside = sure & (expected > 0.1 + 1e-6)
    assert (values.ravel()[outside] == np.float32(-0.1)).all()


def test_each_environment_has_its_field(mesh_engine: Engine) -> None:
    case = case_of("fields", *worlds(), environments=4)
    world = world_of(mesh_engine, case)
    fields = [mesh_engine.esdf(world, BOX, EDGES, SIZE, environment=number).numpy() for number in range(4)]
    points = centres((15, 12, 10), (1 - np.array((15, 12, 10))) / 2)
    for number, values in enumerate(fields):
        there = [one for one in case.placed if one.enabled and one.environment == number]
        if there:
            expected, sure = distances(there, points)
            assert_image(values.ravel()[sure], expected[sure], 1e-6)
        else:
            assert (values == np.inf).all()
    limited = mesh_engine.esdf(world, BOX, EDGES, SIZE, environment=2, max_distance=0.4)
    assert (limited.numpy() == np.float32(0.4)).all()


def test_a_field_of_one_voxel_is_the_distance_of_its_box(mesh_engine: Engine) -> None:
    case = case_of("one voxel", *kinds())
    values = mesh_engine.esdf(world_of(mesh_engine, case), TURNED, (0.03, 0.03, 0.03), 0.03)
    assert values.shape == (1, 1, 1)
    sphere = np.array([[[[*TURNED[:3], 0.0]]]], np.float32)
    single = MeshCase("one voxel", case.placed, sphere, options=Options())
    assert_image(values.reshape(1, 1, 1), run(mesh_engine, single, outputs=("distance",)).outputs["distance"], 1e-7)
