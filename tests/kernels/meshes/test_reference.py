"""The float64 references themselves: closed forms, definitions against each other, differences, other libraries."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from support.closeness import assert_image, assert_relative
from support.meshes import oracle as mesh_oracle
from support.meshes import shapes
from support.meshes.case import CuboidShape, MeshCase, MeshShape, Placed
from support.meshes.cases import TURNED, ball_grid, exact_cases, settings, sweeps
from support.meshes.obstacles import Obstacle, look, survey
from support.meshes.reference import ExactScene
from support.meshes.reference_curobo import CuroboScene
from support.meshes.rows import cost_of
from support.meshes.spheres import random_of
from support.meshes.sweep import samples_of
from support.meshes.triangles import closest
from support.spheres import oracle

ORACLE_FILES = oracle.files("meshes")
needs_oracle = pytest.mark.skipif(not ORACLE_FILES, reason=oracle.ABSENT)
CASES = {case.name: case for case in exact_cases()}
# Of forms that differ in nothing but where the closest point lies, a few.
DIFFERENT = [case.name for case in [*settings(), *sweeps()]]
DIFFERENT += ["box", "torus", "long quaternion", "cuboid", "grid", "all kinds", "open box auto", "inside out auto"]
CLOSED = {
    "box": shapes.box(),
    "squares": shapes.grid_box(),
    "tetrahedron": shapes.tetrahedron(),
    "torus": shapes.torus(),
    "ell": shapes.ell(),
    "caps": shapes.capped(),
    "split": shapes.split(shapes.torus(20, 10)),
    "shuffled": shapes.shuffled(shapes.torus(20, 10)),
    "duplicates": shapes.with_duplicates(shapes.torus(20, 10)),
    "touching": shapes.touching(),
    "hollow": shapes.hollow(),
}


def points_around(shape: MeshShape, count: int = 800) -> torch.Tensor:
    low, high = shape.vertices.min(0), shape.vertices.max(0)
    return torch.from_numpy(np.random.default_rng(5).uniform(low - 0.2, high + 0.2, (count, 3)))


def test_distances_from_a_box_are_those_of_its_formula() -> None:
    size = (1.0, 0.7, 0.4)
    for mesh in (shapes.box(size), shapes.grid_box(size, 3)):
        points = points_around(mesh)
        by_faces, by_formula = look(mesh, points), look(CuboidShape(size), points)
        for name in ("distance", "closest"):
            assert_image(getattr(by_faces, name), getattr(by_formula, name), 1e-12)
        single = by_faces.single & by_formula.single
        assert single.double().mean() > 0.97
        assert_image(by_faces.gradient[single], by_formula.gradient[single], 1e-9)


@pytest.mark.parametrize("name", [*CLOSED, "bowl", "open box"])
def test_no_point_of_the_triangles_is_closer(name: str) -> None:
    shape = {**CLOSED, "bowl": shapes.bowl(), "open box": shapes.open_box()}[name]
    random, triangles = random_of(name), torch.from_numpy(shape.corners)
    points = points_around(shape, 60)
    found = closest(points, triangles)
    shares = torch.from_numpy(random.dirichlet((0.5, 0.5, 0.5), (len(triangles), 40)))
    others = torch.cat([(shares @ triangles).reshape(-1, 3), triangles.reshape(-1, 3)])
    away = torch.cdist(points, others, compute_mode="donot_use_mm_for_euclid_dist").min(-1).values
    assert (away >= found.distance - 1e-12).all()
    assert_image((points - found.point).norm(dim=-1), found.distance, 1e-14)


@pytest.mark.parametrize("name", CLOSED)
def test_definitions_of_inside_agree_for_solids(name: str) -> None:
    mesh, signs = survey(CLOSED[name])
    points = points_around(CLOSED[name])
    winding = signs.winding(points)
    assert_image(winding, winding.round(), 1e-6)
    inside, _ = signs.by_winding(points)
    assert 0.02 < inside.double().mean() < 0.98
    assert_image(signs.by_normals(points, closest(points, mesh.triangles)), inside, 0)
    by_rays, sure = signs.by_rays(points)
    assert name == "caps" or sure.double().mean() > 0.97
    assert_image(by_rays[sure], inside[sure], 0)


def test_rays_see_the_side_that_they_meet_first() -> None:
    # A box without a top: +z meets nothing, the other two the backs of walls. Inverted, no ray meets a back.
    size = (0.8, 0.6, 0.5)
    inside = torch.tensor([[0.01, 0.02, 0.03], [0.3, -0.2, 0.24], [0.0, 0.0, 0.3], [-0.5, 0.05, 0.02]]).double()
    for mesh, expected in (
        (shapes.open_box(size), [1, 1, 0, 0]),
        (shapes.turned_inside_out(shapes.open_box(size)), [0, 0, 0, 0]),
    ):
        votes, sure = survey(mesh)[1].by_rays(inside)
        assert sure.all()
        assert votes.long().tolist() == expected


def test_facts_of_meshes_are_known() -> None:
    def facts(shape: MeshShape) -> dict[str, object]:
        return vars(survey(shape)[0].facts())

    solid = {"closed": True, "oriented": True, "boundary_edges": 0, "nonmanifold_edges": 0, "inconsistent_edges": 0}
    box = facts(shapes.box((1.0, 0.7, 0.4)))
    assert box.items() >= {**solid, "vertices": 8, "faces": 12, "welded_vertices": 8}.items()
    assert box["volume"] == pytest.approx(0.28) and box["area"] == pytest.approx(2 * (0.7 + 0.4 + 0.28))
    assert box["low"] == (-0.5, -0.35, -0.2) and box["high"] == (0.5, 0.35, 0.2)
    assert facts(shapes.split(shapes.box())).items() >= {**solid, "vertices": 36, "welded_vertices": 8}.items()
    assert facts(shapes.turned_inside_out(shapes.box()))["volume"] == pytest.approx(-0.28)
    doubled = facts(shapes.with_duplicates(shapes.torus(20, 10)))
    assert doubled.items() >= {**solid, "degenerate_faces": 3, "duplicate_faces": 134}.items()
    assert facts(shapes.open_box())["boundary_edges"] == 4
    assert facts(shapes.hollow())["volume"] == pytest.approx(0.9**3 - 0.6**3)
    flipped = shapes.box()
    flipped.faces[0] = flipped.faces[0, ::-1]
    assert facts(flipped).items() >= {"closed": True, "oriented": False, "inconsistent_edges": 3}.items()
    fan = MeshShape(shapes.box().vertices, np.array([[0, 1, 2], [0, 1, 4], [1, 0, 6]], np.int32))
    assert facts(fan).items() >= {"closed": False, "nonmanifold_edges": 1, "boundary_edges": 6}.items()


def test_a_grid_has_its_values_at_voxels_and_lines_in_between() -> None:
    grid = ball_grid()
    half = (np.array(grid.distances.shape) - 1) / 2 * grid.voxel_size
    index = random_of("voxels").integers(0, np.array(grid.distances.shape), (50, 3))
    points = torch.from_numpy(index * grid.voxel_size - half)
    assert_image(look(grid, points).distance, grid.distances[tuple(index.T)], 1e-12)
    one, other = points[:1], points[:1] + torch.tensor([[grid.voxel_size, 0, 0]], dtype=torch.float64)
    if not (index[0, 0] + 1 < grid.distances.shape[0]):
        one, other = other - 2 * (other - one), one
    middle = look(grid, (one + other) / 2).distance
    assert_image(middle, (look(grid, one).distance + look(grid, other).distance) / 2, 1e-12)
    outside = torch.from_numpy(half + np.array([0.3, 0.4, 0.0]))[None]
    assert_image(look(grid, outside).distance, [float(grid.distances[-1, -1, -1]) + 0.5], 1e-7)


@pytest.mark.parametrize("shape", [shapes.torus(20, 10), CuboidShape((0.6, 0.5, 0.3)), ball_grid()], ids=str)
def test_directions_are_slopes_of_distances(shape: MeshShape | CuboidShape) -> None:
    obstacle = Obstacle(Placed(shape, TURNED))
    points = torch.from_numpy(np.random.default_rng(1).uniform(-0.6, 0.6, (300, 3)))
    seen = obstacle.look(points)
    for axis in range(3):
        step = 1e-7 * torch.eye(3, dtype=torch.float64)[axis]
        slope = (obstacle.look(points + step).distance - obstacle.look(points - step).distance) / 2e-7
        assert_image(slope[seen.single], seen.gradient[seen.single, axis], 1e-3)


def test_costs_begin_softly() -> None:
    eta = 0.02
    depth = torch.tensor([-1.0, 0.0, 0.01, 0.02, 0.05], dtype=torch.float64, requires_grad=True)
    cost = cost_of(depth, eta)
    assert_image(cost.detach(), [0, 0, 0.01**2 / 0.04, 0.01, 0.04], 1e-15)
    (slope,) = torch.autograd.grad(cost.sum(), depth)
    assert_image(slope, [0, 0, 0.5, 1, 1], 1e-15)
    assert_image(cost_of(depth.detach(), 0.0), [0, 0, 0.01, 0.02, 0.05], 0)


def test_samples_are_halvings_until_the_way_is_covered() -> None:
    def fractions(clearances: dict[float, float], half: float, inflated: float, samples: int) -> tuple[object, bool]:
        one = torch.ones(1, dtype=torch.float64)
        _, found, exhausted, _ = samples_of(
            half * one,
            clearances[0.0] * one,
            inflated * one,
            samples,
            lambda _, at: torch.tensor([clearances[f] for f in at.tolist()], dtype=torch.float64),
        )
        return sorted(found.tolist()), bool(exhausted)

    assert fractions({0.0: 1.5}, 1.0, 0.1, 32) == ([], False)
    assert fractions({0.0: 0.9, 0.5: 0.2}, 1.0, 0.1, 32) == ([0.5], False)
    middle = {0.0: 0.4, 0.5: 0.5, 0.25: 0.3}
    assert fractions(middle, 1.0, 0.1, 32) == ([0.25, 0.5], False)
    # Out of samples where all is free that was looked at; not where something touches.
    assert fractions(middle, 1.0, 0.1, 1) == ([0.5], True)
    assert fractions({**middle, 0.5: -0.5}, 1.0, 0.1, 1) == ([0.5], False)
    deep = dict.fromkeys((0.0, 0.125, 0.25, 0.375, 0.5), -0.5)
    assert fractions(deep, 1.0, 0.25, 32) == ([0.125, 0.25, 0.375, 0.5], False)
    assert fractions(deep, 1.0, 1.0, 32) == ([0.5], False)


@pytest.mark.parametrize("name", DIFFERENT)
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    case = CASES[name]
    scene = ExactScene(case)
    costs, distances = scene.cost, scene.nearest["distance"]
    stable = scene.shaped(scene.sure & scene.smooth & torch.isfinite(distances))
    random, size = random_of(f"differences of {name}"), float(np.abs(case.spheres).max())
    upstream = {key: np.where(stable, random.standard_normal(case.shape), 0) for key in ("cost", "distance")}
    gradients = scene.gradients(upstream)
    weight = gradients.pop("weight")
    assert weight == pytest.approx((upstream["cost"] * scene.shaped(costs)).sum() / case.options.weight)
    for key, gradient in gradients.items():
        step = random.standard_normal(gradient.shape) * 1e-8 * (size if key == "spheres" else 1.0)
        if key == "poses":
            step[:, :3] *= size
        if key == "spheres":
            step[..., 3] = np.where(case.spheres[..., 3] > 0, step[..., 3], 0)

        def loss(sign: int, key: str = key, step: np.ndarray = step) -> float:
            moved = _moved(case, key, sign * step)
            other = ExactScene(moved)
            values = {"cost": other.cost, "distance": other.nearest["distance"]}
            return sum(
                float((np.nan_to_num(scene.shaped(values[k]), posinf=0) * weights).sum())
                for k, weights in upstream.items()
            )

        slope, expected = (loss(1) - loss(-1)) / 2, float((gradient * step).sum())
        whole = float(np.linalg.norm(gradient) * np.linalg.norm(step))
        noise = 1e-13 * size * case.options.weight * len(stable.ravel())
        assert abs(slope - expected) <= 2e-3 * whole + noise, f"{key}: {expected}, differences {slope}, of {whole}"


def _moved(case: MeshCase, name: str, step: np.ndarray) -> MeshCase:
    if name == "spheres":
        return replace(case, spheres=case.spheres.astype(np.float64) + step)
    poses = [tuple((np.array(one.pose) + change).tolist()) for one, change in zip(case.placed, step, strict=True)]
    return replace(case, placed=tuple(replace(one, pose=pose) for one, pose in zip(case.placed, poses, strict=True)))


@needs_oracle
@pytest.mark.parametrize("path", ORACLE_FILES, ids=lambda path: path.stem)
def test_cases_computed_elsewhere_are_reproduced(path: Path) -> None:
    found = mesh_oracle.load(path)
    scene, weight = CuroboScene(found.case), found.case.options.weight
    assert_image(scene.cost[found.ok_cost], found.cost[found.ok_cost], 1e-6 * weight)
    assert_relative("gradient", scene.gradient[found.ok_gradient], found.gradient[found.ok_gradient], 2e-5, 1e-12)
    options = replace(found.case.options, semantics="exact", max_distance=None, sweep=False, speed_metric=False)
    exact = ExactScene(replace(found.case, options=options))
    if path.stem.startswith(("11", "12")):
        return  # The other library counts one ray.
    distance = exact.shaped(exact.per_instance["distance"])
    there = np.isfinite(distance)
    assert there.any()
    assert_image(distance[there], found.distances[there], 1e-6)


@needs_oracle
def test_exact_gradients_of_a_static_case_are_those_of_differences_elsewhere() -> None:
    path = next(path for path in ORACLE_FILES if path.stem.startswith("05"))
    found = mesh_oracle.load(path)
    assert found.differences is not None
    scene = ExactScene(replace(found.case, options=replace(found.case.options, semantics="exact", max_distance=None)))
    assert_image(scene.shaped(scene.cost), found.cost, 1e-6)
    gradient = scene.gradients({"cost": np.ones(found.case.shape)})["spheres"]
    smooth = scene.shaped(scene.smooth)
    assert_relative("gradient", gradient[smooth], found.differences[smooth], 1e-4)
