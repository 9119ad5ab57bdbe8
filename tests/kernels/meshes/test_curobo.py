"""Costs and gradients with cuRobo's semantics, against the float64 reference: spec sections 3 to 8."""

from __future__ import annotations

import numpy as np
import pytest

from support.backends.mesh_engines import Engine
from support.closeness import assert_image, assert_relative
from support.meshes.case import GridShape, MeshCase, Options, Placed
from support.meshes.cases import ball_grid, case_of, curobo_cases
from support.meshes.marks import curobo
from support.meshes.runs import run
from support.meshes.spheres import random_of

CASES = {case.name: case for case in curobo_cases()}


def found(name: str) -> MeshCase:
    return CASES[name]


def tolerance(case: MeshCase, largest: float) -> float:
    return 1e-6 * case.options.weight + 1e-5 * largest


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_the_reference(name: str, mesh_engine: Engine) -> None:
    case, scene = CASES[name], curobo(name, found)
    outputs = run(mesh_engine, case, outputs=("cost", "gradient")).outputs
    assert scene.sure.mean() > 0.9 and scene.smooth.mean() > 0.85
    largest = float(np.abs(scene.cost).max())
    assert_image(outputs["cost"][scene.sure], scene.cost[scene.sure], tolerance(case, largest))
    steepest = float(np.abs(scene.gradient).max())
    assert_image(outputs["gradient"][scene.smooth], scene.gradient[scene.smooth], 5e-4 * max(1.0, steepest))
    assert_relative("gradient", outputs["gradient"][scene.smooth], scene.gradient[scene.smooth], 1e-4)
    assert not outputs["gradient"][..., 3].any()


@pytest.mark.parametrize("name", ["three", "swept", "swept speed", "three field"])
def test_gradients_are_multiplied_by_what_comes_from_above(name: str, mesh_engine: Engine) -> None:
    case = CASES[name]
    upstream = random_of(f"upstream of {name}").standard_normal(case.shape).astype(np.float32)
    plain = run(mesh_engine, case, outputs=("cost", "gradient"))
    scaled = run(mesh_engine, case, upstream={"cost": upstream}, wanted=("spheres", "weight"))
    assert_relative("spheres", scaled.gradients["spheres"], plain.outputs["gradient"] * upstream[..., None], 1e-6)
    sums = float((plain.outputs["cost"].astype(np.float64) * upstream).sum()) / case.options.weight
    assert float(scaled.gradients["weight"]) == pytest.approx(sums, rel=1e-4, abs=1e-5)


def test_distances_are_looked_for_as_far_as_costs(mesh_engine: Engine) -> None:
    case = CASES["three near"]
    together = run(mesh_engine, case, outputs=("cost", "gradient", "distance")).outputs
    alone = run(mesh_engine, case, outputs=("cost", "gradient")).outputs
    for name, values in alone.items():
        assert_image(together[name], values, 1e-6)
    assert np.isfinite(together["distance"]).all()


def grid_value(grid: GridShape, point: np.ndarray) -> float | None:
    """Returns the voxel whose centre is next below along each axis; None within two voxels of the border."""
    place = point / grid.voxel_size + (np.array(grid.distances.shape) - 1) / 2
    if (place < 2).any() or (place >= np.array(grid.distances.shape) - 2).any():
        return None
    return float(grid.distances[tuple(np.floor(place).astype(int))])


@pytest.mark.parametrize("axis", range(3))
def test_grids_end_exactly_two_voxels_before_their_last(axis: int, mesh_engine: Engine) -> None:
    grid = GridShape(np.full((9, 9, 9), -1.0, np.float32), 0.25)
    places = np.full((9, 4), 4.0)
    places[:, axis] = np.arange(9)
    spheres = ((places - 4) * 0.25).astype(np.float32).reshape(1, 1, 9, 4)
    spheres[..., 3] = 0.1
    options = Options(semantics="curobo", max_distance=0.4, activation_distance=0.05)
    case = MeshCase("places of voxels", (Placed(grid),), spheres, options=options)
    cost = run(mesh_engine, case, outputs=("cost",)).outputs["cost"].reshape(-1)
    assert ((cost > 0) == [2 <= place < 7 for place in range(9)]).all()


def test_grids_are_read_voxel_by_voxel(mesh_engine: Engine) -> None:
    grid = ball_grid()
    options = {"semantics": "curobo", "max_distance": 0.4, "activation_distance": 0.05}
    case = case_of("grid as cuRobo reads it", Placed(grid), **options)
    outputs = run(mesh_engine, case, outputs=("cost", "gradient")).outputs
    seen = 0
    for index in np.ndindex(*case.shape):
        point, radius = case.spheres[index][:3].astype(np.float64), float(case.spheres[index][3])
        place = point / grid.voxel_size + (np.array(grid.distances.shape) - 1) / 2
        if (np.abs(place - np.round(place)) < 1e-4).any():
            continue
        value = grid_value(grid, point)
        depth = -1.0 if value is None else radius + 0.05 - value
        cost = 0.0 if depth <= 0 else depth**2 / 0.1 if depth <= 0.05 else depth - 0.025
        assert outputs["cost"][index] == pytest.approx(cost, abs=1e-6)
        if value is None or depth <= 0:
            assert not outputs["gradient"][index].any()
            continue
        cell = np.floor(place).astype(int)
        steps = np.eye(3, dtype=int)
        slope = np.array([float(grid.distances[(*(cell + s),)] - grid.distances[(*(cell - s),)]) for s in steps])
        expected = -min(1.0, depth / 0.05) * slope / np.linalg.norm(slope)
        assert_image(outputs["gradient"][index][:3], expected, 1e-5)
        seen += 1
    assert seen > 20
