"""Exact sweeps do not depend on the direction of time, and miss nothing."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch

from support.backends.mesh_engines import Engine
from support.closeness import assert_image, assert_relative
from support.meshes import shapes
from support.meshes.case import CuboidShape, Doubles, MeshCase, MeshShape, Options, Placed
from support.meshes.cases import TURNED, case_of, kinds
from support.meshes.obstacles import Obstacle
from support.meshes.runs import run, with_options
from support.meshes.spheres import Crowd, random_of


@pytest.mark.parametrize("speed", [False, True], ids=["plain", "speed"])
@pytest.mark.parametrize("reduction", ["sum", "max"])
def test_sweeps_do_not_know_the_direction_of_time(reduction: str, speed: bool, mesh_engine: Engine) -> None:
    crowd = Crowd(batches=4, horizon=6, count=16, step=0.3)
    step = {"speed_metric": True, "time_step_s": 0.1} if speed else {}
    case = case_of("time", *kinds(), crowd=crowd, reduction=reduction, sweep=True, activation_distance=0.02, **step)
    upstream = random_of("time").standard_normal(case.shape).astype(np.float32)
    forward = run(mesh_engine, case, outputs=("cost", "exhausted"), upstream={"cost": upstream})
    other = replace(case, spheres=np.ascontiguousarray(case.spheres[:, ::-1]))
    back = run(mesh_engine, other, outputs=("cost", "exhausted"), upstream={"cost": upstream[:, ::-1]})
    assert_image(back.outputs["cost"][:, ::-1], forward.outputs["cost"], 1e-5 * float(forward.outputs["cost"].max()))
    np.testing.assert_array_equal(back.outputs["exhausted"][:, ::-1], forward.outputs["exhausted"])
    assert_relative("spheres", back.gradients["spheres"][:, ::-1], forward.gradients["spheres"], 1e-5)
    assert_relative("poses", back.gradients["poses"], forward.gradients["poses"], 1e-4)


def plate(seed: int) -> CuboidShape:
    """Returns the wall of `passes` as a cuboid."""
    return CuboidShape((10.0 ** -(1 + seed % 4), 1.6, 1.6))


@functools.cache
def passes(seed: int) -> MeshCase:
    """Spheres that shoot through or past a thin posed wall, at any angle and speed."""
    random = random_of(f"passes {seed}")
    axis = random.standard_normal(4)
    wall = Placed(shapes.box(plate(seed).size), (*random.uniform(-0.2, 0.2, 3), *axis))
    batches, horizon, count = 8, 4, 8
    start = random.uniform(-1, 1, (batches, 1, count, 3))
    speed = 10 ** random.uniform(-2, 0.3, (batches, 1, count, 1))
    way = random.standard_normal((batches, 1, count, 3))
    steps = np.arange(horizon)[:, None] - random.uniform(0, horizon - 1, (batches, 1, count))
    centres = 0.5 * start + steps[..., None] * speed * way
    radii = np.broadcast_to(10 ** random.uniform(-2.5, -1, (batches, 1, count, 1)), (batches, horizon, count, 1))
    spheres = np.concatenate([centres, radii], -1).astype(np.float32)
    options = Options(activation_distance=float(random.choice([0.0, 0.01])), sweep=True, samples=256)
    return MeshCase(f"passes {seed}", (wall,), spheres, options=options)


@functools.cache
def least_distances(case: MeshCase, solids: tuple[Placed, ...], samples: int = 400) -> Doubles:
    """Returns the least distances [B, H, S] on the halves of each row's ways to its neighbours, within half a gap."""
    centres = torch.from_numpy(case.spheres[..., :3].astype(np.float64))
    share = torch.linspace(0, 0.5, samples, dtype=torch.float64)[:, None]
    least = torch.full(case.shape, torch.inf, dtype=torch.float64)
    for shift in (-1, 1):
        other = centres.roll(shift, 1)
        other[:, -1 if shift < 0 else 0] = centres[:, -1 if shift < 0 else 0]
        points = centres[..., None, :] + share * (other - centres)[..., None, :]
        for one in solids:
            seen = Obstacle(one).look(points.reshape(-1, 3)).distance.reshape(*case.shape, samples)
            least = torch.minimum(least, seen.amin(-1))
    return least.numpy()


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_passed_unseen(seed: int, mesh_engine: Engine) -> None:
    case = passes(seed)
    outputs = run(mesh_engine, case, outputs=("cost", "exhausted")).outputs
    inflated = case.spheres[..., 3].astype(np.float64) + case.options.activation_distance
    touched = least_distances(case, (replace(case.placed[0], shape=plate(seed)),)) < inflated - 1e-5
    assert 20 < touched.sum() < touched.size - 20
    seen = (outputs["cost"] > 0) | outputs["exhausted"]
    assert seen[touched].all()
    assert (outputs["cost"] > 0)[touched].mean() > 0.95
    # Some are missed without a sweep.
    static = run(mesh_engine, with_options(case, sweep=False)).outputs["cost"]
    assert (static[touched] == 0).any()
    assert (outputs["cost"] >= static * (1 - 1e-6)).all()


@functools.cache
def free_ways(name: str) -> MeshCase:
    """Long ways with few samples."""
    shape = {"torus": shapes.torus(16, 8), "bowl": shapes.bowl(), "ell": shapes.ell()}[name]
    crowd = Crowd(batches=4, horizon=4, count=12, near=0.2, step=0.5, radii=(0.005, 0.05))
    return case_of("free ways", Placed(shape, TURNED, sign="unsigned"), crowd=crowd, sweep=True, samples=8)


@pytest.mark.parametrize("name", ["torus", "bowl", "ell"])
def test_ways_that_cost_nothing_are_free(name: str, mesh_engine: Engine) -> None:
    case = free_ways(name)
    outputs = run(mesh_engine, case, outputs=("cost", "exhausted")).outputs
    free = (outputs["cost"] == 0) & ~outputs["exhausted"]
    assert free.sum() > 20 and outputs["exhausted"].any()
    least = least_distances(case, case.placed, 120)
    assert (least[free] >= case.spheres[..., 3][free] - 1e-5).all()


@pytest.mark.parametrize("samples", [1, 2, 4, 8, 16])
def test_ways_are_halved_as_often_as_the_samples_allow(samples: int, mesh_engine: Engine) -> None:
    """A sphere goes 2 m along a wall, 0.1 m from it; an eighth of half its way is so short that it must be free."""
    spheres = np.array([[-1.0, 0, 0.25, 0.05], [1, 0, 0.25, 0.05]], np.float32).reshape(1, 2, 1, 4)
    wall = Placed(CuboidShape((10.0, 10.0, 0.2)))
    case = MeshCase("beside", (wall,), spheres, options=Options(sweep=True, samples=samples))
    outputs = run(mesh_engine, case, outputs=("cost", "exhausted")).outputs
    assert not outputs["cost"].any()
    assert (outputs["exhausted"] == (samples <= 4)).all()


def sheet() -> MeshShape:
    """Two triangles of no thickness, across z."""
    corners = np.array([[-1.0, -1, 0], [1, -1, 0], [1, 1, 0], [-1, 1, 0]])
    return MeshShape(corners, np.array([[0, 1, 2], [0, 2, 3]], np.int32))


@pytest.mark.parametrize("sign", ["auto", "unsigned", "rays"])
@pytest.mark.parametrize(("first", "last"), [(-1.0, 1.0), (-0.75, 0.25), (-0.5, 0.25), (-0.3, 0.7), (0.2, -0.1)])
def test_a_point_that_goes_head_on_through_a_sheet_is_not_free(
    first: float, last: float, sign: str, mesh_engine: Engine
) -> None:
    """Touching costs nothing, and the free balls around the time steps touch in the sheet."""
    spheres = np.array([[0.1, 0.2, first, 0.0], [0.1, 0.2, last, 0.0]], np.float32).reshape(1, 2, 1, 4)
    case = MeshCase("head-on", (Placed(sheet(), sign=sign),), spheres, options=Options(sweep=True))
    outputs = run(mesh_engine, case, outputs=("cost", "exhausted")).outputs
    assert ((outputs["cost"] > 0) | outputs["exhausted"]).any()
    aside = replace(case, spheres=spheres + np.array([5.0, 0, 0, 0], np.float32))
    assert not run(mesh_engine, aside, outputs=("exhausted",)).outputs["exhausted"].any()
