"""Worlds: signs, shapes that are shared, poses and switches that are changed, gradients of what is not there."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from lumigrad.kernels.meshes import COSTS, OUTPUTS, Cuboid, Instance, Mesh, Settings, World, backward, evaluate
from lumigrad.kernels.meshes.engine import engine_for
from support.meshes import shapes as mesh_shapes
from support.meshes.case import MeshShape

AT = [0.3, -0.2, 0.1, 0.8, 0.1, -0.5, 0.3]


def mesh(shape: MeshShape) -> Mesh:
    return Mesh.build(torch.from_numpy(shape.vertices), torch.from_numpy(shape.faces))


def cloud(shape: tuple[int, int, int] = (3, 2, 40), seed: int = 0) -> Tensor:
    random = np.random.default_rng(seed)
    rows = np.concatenate([random.uniform(-0.9, 0.9, (*shape, 3)), random.uniform(0.02, 0.1, (*shape, 1))], axis=-1)
    return torch.from_numpy(rows.astype(np.float32))


def distances(world: World, spheres: Tensor, **options: object) -> Tensor:
    return evaluate(spheres, world, Settings(), outputs=("distance",), **options).outputs["distance"]  # type: ignore[arg-type]


def kinds() -> World:
    return World(
        [
            Instance(mesh(mesh_shapes.torus(16, 8)), AT),
            Instance(Cuboid((0.4, 0.3, 0.5)), [-0.4, 0.3, 0.0, 1.0, 0.2, 0.0, 0.0]),
            Instance(mesh(mesh_shapes.open_box()), [0.0, 0.0, 5.0, 1.0, 0.0, 0.0, 0.0], enabled=False),
        ]
    )


def test_spheres_that_are_off_are_near_nothing() -> None:
    world, spheres = kinds(), cloud()
    spheres[0, 0, :10, 3] = -0.01
    spheres[0, 1, :10, 0] = float("nan")
    found = evaluate(spheres, world, Settings(activation_distance=5.0), outputs=OUTPUTS, checked=True).outputs
    for name, value in (("cost", 0.0), ("distance", float("inf")), ("instance", -1), ("face", -1), ("normal", 0.0)):
        assert (found[name][0, :, :10] == value).all(), name
        assert not (found[name][1] == value).all(), name
    assert (found["gradient"][0, :, :10] == 0.0).all()


# More than 512 spheres are sorted along a curve first.
@pytest.mark.parametrize("count", [40, 400])
@pytest.mark.parametrize("semantics", ["exact", "curobo"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e30], ids=str)
def test_checked_spheres_that_are_not_finite_are_off(value: float, semantics: str, count: int) -> None:
    world, spheres = kinds(), cloud((3, 3, count))
    settings = Settings(semantics, activation_distance=0.3, max_distance=5.0, sweep=True)
    bad = torch.zeros(3, 3, count, dtype=torch.bool)
    bad[0, 0, :10] = bad[1, 1, 20:24] = True
    rows = bad.flatten().nonzero()[:, 0]
    spheres.view(-1, 4)[rows, torch.arange(len(rows)) % 4] = value
    found = evaluate(spheres, world, settings, outputs=COSTS, checked=True).outputs
    assert (found["cost"][bad] == 0.0).all() and (found["gradient"][bad] == 0.0).all()
    # Their neighbours in time are evaluated as the first and last steps of trajectories are.
    alone = evaluate(spheres[1:2, :1], world, settings, outputs=COSTS).outputs
    assert torch.equal(found["cost"][1, 0, 20:24], alone["cost"][0, 0, 20:24])
    spheres[bad] = 0.1
    expected = evaluate(spheres, world, settings, outputs=COSTS).outputs
    beside = bad.any(1, keepdim=True).expand_as(bad)
    for name in COSTS:
        torch.testing.assert_close(found[name][~beside], expected[name][~beside], rtol=0, atol=1e-6)


def test_shapes_are_shared() -> None:
    open_one = mesh(mesh_shapes.bowl())
    engine, before = engine_for(torch.device("cpu")), open_one.bytes
    world = World([Instance(open_one, AT), Instance(open_one, sign="rays"), Instance(Cuboid((1.0, 1.0, 1.0)))])
    assert world.bytes == before
    assert world.placed(engine) is world.placed(engine)
    moved = world.with_poses({0: AT})
    assert moved.instances[0].shape is open_one
    assert open_one.solid(engine, "winding") is open_one.solid(engine, "winding")


def test_gradients_of_distances_where_nothing_was_found_do_not_matter() -> None:
    world, spheres = kinds(), cloud()
    spheres[0, 0, :10, 3] = -0.01
    first = evaluate(spheres, world, Settings(), outputs=("distance",), retain=True)
    nothing = first.outputs["distance"].isinf()
    assert nothing.any()
    given, zero = (torch.where(nothing, value, 1.0) for value in (float("nan"), 0.0))
    found, expected = (backward(first.state, {"distance": each}, ("spheres", "poses")) for each in (given, zero))
    for name, gradient in expected.gradients.items():
        assert torch.equal(found.gradients[name], gradient), name


def test_a_world_keeps_what_was_asked_of_the_one_it_comes_from() -> None:
    world, spheres = kinds(), cloud()
    before = distances(world, spheres)
    elsewhere = world.with_poses({0: [5.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0], 1: [9.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]})
    assert (distances(elsewhere, spheres) > before).all()
    assert torch.equal(distances(world, spheres), before)
    off = elsewhere.with_enabled({0: False, 1: False})
    assert distances(off, spheres).isinf().all()
    assert off.instances[0].shape is world.instances[0].shape
