"""The float64 references themselves: closed forms, definitions against each other, differences, other libraries."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from support.closeness import assert_image
from support.meshes import shapes
from support.meshes.case import CuboidShape, MeshShape
from support.meshes.cases import ball_grid
from support.meshes.obstacles import look, survey
from support.meshes.rows import cost_of
from support.meshes.spheres import random_of
from support.meshes.sweep import samples_of


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


def test_rays_see_the_side_that_they_meet_first() -> None:
    # In a box without a top, +z meets nothing, the other rays meet backs of walls; inverted, no ray meets a back.
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
    # Samples are exhausted if all places so far were free; not if one of them touches.
    assert fractions(middle, 1.0, 0.1, 1) == ([0.5], True)
    assert fractions({**middle, 0.5: -0.5}, 1.0, 0.1, 1) == ([0.5], False)
    deep = dict.fromkeys((0.0, 0.125, 0.25, 0.375, 0.5), -0.5)
    assert fractions(deep, 1.0, 0.25, 32) == ([0.125, 0.25, 0.375, 0.5], False)
    assert fractions(deep, 1.0, 1.0, 32) == ([0.5], False)
