"""Exact gradients against finite differences of the engine itself: the reference only says where there are none."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from support.backends.mesh_engines import Engine
from support.meshes import shapes
from support.meshes.case import CuboidShape, Doubles, Floats, MeshCase, Placed
from support.meshes.cases import ASIDE, LONG, TURNED, ball_grid, case_of
from support.meshes.reference import ExactScene
from support.meshes.runs import run
from support.meshes.spheres import Crowd, random_of

# Metres. Spheres whose costs are cut off or chosen otherwise within MARGIN are left out of the loss.
STEP, MARGIN = 3e-4, 2e-3
# Few edges, so that most closest points stay where they are.
SOLIDS = (Placed(shapes.ell(), TURNED), Placed(shapes.tetrahedron(0.9), (0.5, 0.2, -0.3, *LONG[3:])))
KINDS = (*SOLIDS[:1], Placed(CuboidShape((0.6, 0.4, 0.5)), ASIDE), Placed(ball_grid(), (0.5, -0.5, 0.1, *LONG[3:])))
# More than one time step and time for several to be in contact.
PATH = Crowd(batches=3, horizon=5, count=12, near=0.06, step=0.12, radii=(0.04, 0.12), loose=0.1)
SPEED = {"speed_metric": True, "time_step_s": 0.1}
CASES = {
    case.name: case
    for case in (
        case_of("differences static", *SOLIDS, crowd=PATH, activation_distance=0.08),
        case_of("differences without activation", *SOLIDS, crowd=PATH),
        case_of("differences of kinds", *KINDS, crowd=PATH, activation_distance=0.08, weight=3.0),
        case_of("differences at most", *KINDS, crowd=PATH, activation_distance=0.08, reduction="max"),
        case_of("differences speed", *SOLIDS, crowd=PATH, activation_distance=0.08, **SPEED),
        case_of("differences swept", *SOLIDS, crowd=PATH, activation_distance=0.08, sweep=True),
        case_of("differences swept kinds", *KINDS, crowd=PATH, activation_distance=0.08, sweep=True),
        case_of("differences swept speed", *SOLIDS, crowd=PATH, activation_distance=0.08, sweep=True, **SPEED),
        case_of("differences swept at most", *KINDS, crowd=PATH, activation_distance=0.08, sweep=True, reduction="max"),
    )
}
# The spheres that are moved: all of them, or those of one time step.
WHERE = {"all": slice(None), "first": slice(0, 1), "second": slice(1, 2), "last": slice(-1, None)}


@functools.cache
def upstream_of(name: str) -> dict[str, Doubles]:
    """Returns upstream gradients of one sign, so that the loss does not cancel; 0 where the loss is not smooth."""
    case = CASES[name]
    scene = ExactScene(case, MARGIN)
    cost, distance = scene.shaped(scene.cost), scene.shaped(scene.nearest["distance"])
    stable = scene.shaped(scene.sure & scene.smooth)
    assert (stable & (cost > 0)).sum() > 20
    weights = random_of(f"upstream of {case.name}").uniform(0.5, 1.5, (2, *case.shape))
    stable &= np.isfinite(distance)
    return {"cost": np.where(stable, weights[0], 0), "distance": np.where(stable, 0.3 * weights[1], 0)}


def loss_of(engine: Engine, case: MeshCase, upstream: dict[str, Doubles]) -> float:
    outputs = run(engine, case, outputs=tuple(upstream)).outputs
    return float(sum((outputs[name].astype(np.float64) * weights).sum() for name, weights in upstream.items()))


def assert_slope(name: str, gradient: Doubles, step: Doubles, loss: Callable[[float], float]) -> None:
    """Compares the derivative along a direction with central differences."""
    measured = (loss(1.0) - loss(-1.0)) / 2
    expected = float((gradient.astype(np.float64) * step).sum())
    size = float(np.linalg.norm(gradient) * np.linalg.norm(step))
    assert size > 0, name
    assert abs(measured - expected) < 2e-3 * size + 1e-7, f"{name}: {expected}, differences {measured}, size {size}"


def rounded(spheres: Floats, step: Doubles) -> tuple[Floats, Doubles]:
    """Returns spheres after a step, and half of the float32 way from minus the step to plus the step."""
    after, before = (spheres + step).astype(np.float32), (spheres - step).astype(np.float32)
    return after, (after.astype(np.float64) - before) / 2


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", CASES)
def test_gradients_of_spheres(name: str, where: str, mesh_engine: Engine) -> None:
    case = CASES[name]
    upstream = upstream_of(name)
    gradient = run(mesh_engine, case, outputs=("cost", "distance"), upstream=upstream).gradients["spheres"]
    random = random_of(f"steps of {name} {where}")
    for columns in (slice(0, 3), slice(3, 4)):
        step = np.zeros(case.spheres.shape)
        moved = step[:, WHERE[where], :, columns]
        moved[:] = random.choice([-STEP, STEP], moved.shape)
        _, step = rounded(case.spheres, step)

        def loss(sign: float, step: Doubles = step) -> float:
            spheres = (case.spheres + sign * step).astype(np.float32)
            return loss_of(mesh_engine, replace(case, spheres=spheres), upstream)

        assert_slope(f"{name} {where} {columns}", gradient, step, loss)


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_poses(name: str, mesh_engine: Engine) -> None:
    case = CASES[name]
    upstream = upstream_of(name)
    gradient = run(mesh_engine, case, outputs=("cost", "distance"), upstream=upstream).gradients["poses"]
    for instance in range(len(case.placed)):
        # Each of the seven numbers is moved; quaternions need not be of length 1.
        for axis in range(7):
            step = np.zeros((len(case.placed), 7))
            step[instance, axis] = STEP

            def loss(sign: float, step: Doubles = step) -> float:
                poses = [np.array(one.pose) + sign * change for one, change in zip(case.placed, step, strict=True)]
                placed = [replace(one, pose=tuple(pose)) for one, pose in zip(case.placed, poses, strict=True)]
                return loss_of(mesh_engine, replace(case, placed=tuple(placed)), upstream)

            assert_slope(f"{name} pose {instance} {axis}", gradient, step, loss)


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_the_weight(name: str, mesh_engine: Engine) -> None:
    case = CASES[name]
    upstream = upstream_of(name)
    gradient = run(mesh_engine, case, outputs=("cost", "distance"), upstream=upstream).gradients["weight"]
    weight = case.options.weight

    def loss(sign: float) -> float:
        options = replace(case.options, weight=weight * (1 + 0.1 * sign))
        return loss_of(mesh_engine, replace(case, options=options), upstream)

    assert_slope(f"{name} weight", gradient, np.array(0.1 * weight), loss)


def test_a_radius_pushes_as_far_as_its_costs_reach(mesh_engine: Engine) -> None:
    # A sphere before a wall: cost d^2 / (2 eta), then d - eta / 2; its slopes by radius and by distance are equal.
    wall = case_of("radius", shapes.wall(0.1), activation_distance=0.05)
    spheres = np.array([[[[-0.25, 0, 0, r] for r in (0.1, 0.16, 0.18, 0.21, 0.3)]]], np.float32)
    case = replace(wall, spheres=spheres)
    gradient = run(mesh_engine, case, upstream={"cost": np.ones(case.shape)}).gradients["spheres"][0, 0]
    depth = spheres[0, 0, :, 3] + 0.05 - 0.2
    np.testing.assert_allclose(gradient[:, 3], np.clip(depth / 0.05, 0, 1), atol=1e-5)
    np.testing.assert_allclose(gradient[:, 0], np.clip(depth / 0.05, 0, 1), atol=1e-5)
    np.testing.assert_allclose(gradient[:, 1:3], 0, atol=1e-6)
