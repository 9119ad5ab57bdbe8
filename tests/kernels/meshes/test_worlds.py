"""Worlds and what is asked of them: environments, switches, signs, single instances, weights, moved meshes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from lumigrad.kernels.meshes import (
    DISTANCES,
    OUTPUTS,
    Cuboid,
    Instance,
    Mesh,
    Settings,
    World,
    backward,
    esdf,
    evaluate,
)
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


def test_auto_is_the_sign_that_a_mesh_can_have() -> None:
    closed, turned = mesh(mesh_shapes.box()), mesh(mesh_shapes.turned_inside_out(mesh_shapes.box()))
    assert closed.policy("auto") == ("normals", False)
    assert turned.policy("auto") == ("normals", True)
    assert mesh(mesh_shapes.open_box()).policy("auto") == ("winding", False)
    assert turned.policy("rays") == ("rays", False)
    spheres = cloud()
    wanted = distances(World([Instance(closed)]), spheres)
    assert torch.equal(distances(World([Instance(turned)]), spheres), wanted)
    assert (wanted < 0).any() and (wanted > 0).any()
    taken_as_it_is = distances(World([Instance(turned, sign="normals")]), spheres)
    torch.testing.assert_close(taken_as_it_is, -wanted)
    assert torch.equal(distances(World([Instance(turned, sign="unsigned")]), spheres), wanted.abs())


@pytest.mark.parametrize("sign", ["normals", "rays", "winding"])
def test_signs_agree_about_solids(sign: str) -> None:
    solid, spheres = mesh(mesh_shapes.ell()), cloud()
    torch.testing.assert_close(
        distances(World([Instance(solid, AT, sign=sign)]), spheres), distances(World([Instance(solid, AT)]), spheres)
    )


def test_each_environment_has_its_own_instances() -> None:
    spheres, boxes = cloud(), [Cuboid((0.2 * i, 0.3, 0.1)) for i in (1, 2, 3)]
    # The middle one is empty; instances come in no order.
    places = [(boxes[0], 2), (boxes[1], 0), (boxes[2], 2)]
    world = World([Instance(box, AT, environment=number) for box, number in places], environments=3)
    found = evaluate(
        spheres,
        world,
        Settings(),
        environments=torch.tensor([2, 1, 0], dtype=torch.int32),
        outputs=("distance", "instance"),
    ).outputs
    for row, alone in enumerate((World([Instance(boxes[0], AT), Instance(boxes[2], AT)]), World([]), None)):
        only = World([Instance(boxes[1], AT)]) if alone is None else alone
        assert torch.equal(found["distance"][row], distances(only, spheres[row : row + 1])[0])
    assert set(found["instance"][0].unique().tolist()) <= {0, 2}
    assert (found["instance"][1] == -1).all() and (found["instance"][2] == 1).all()


def test_distance_is_that_to_the_closest_instance() -> None:
    world, spheres = kinds(), cloud()
    all_at_once = evaluate(spheres, world, Settings(), outputs=DISTANCES).outputs
    each = evaluate(spheres, world, Settings(), outputs=DISTANCES, per_instance=True).outputs
    assert each["distance"].shape == (3, 2, 40, 3) and each["normal"].shape == (3, 2, 40, 3, 3)
    closest = each["distance"].argmin(dim=-1)
    assert torch.equal(closest.int(), all_at_once["instance"])
    for name in DISTANCES:
        where = closest[..., None] if each[name].dim() == 4 else closest[..., None, None].expand(3, 2, 40, 1, 3)
        assert torch.equal(each[name].gather(3, where).squeeze(3), all_at_once[name]), name
    assert each["distance"][..., 2].isinf().all() and (each["instance"][..., 2] == -1).all()


def test_gradient_is_that_of_the_sum_of_costs() -> None:
    world, spheres = kinds(), cloud((3, 4, 20))
    for settings in (
        Settings(activation_distance=0.1, weight=-2.5, sweep=True),
        Settings(semantics="curobo", activation_distance=0.1, weight=3.0, sweep=True, samples=4),
    ):
        found = evaluate(spheres, world, settings, outputs=("gradient", "cost"), retain=True)
        assert found.state is not None
        gradients = backward(found.state, {"cost": torch.ones(3, 4, 20)}).gradients
        torch.testing.assert_close(found.outputs["gradient"], gradients["spheres"])
        assert found.outputs["gradient"].abs().max() > 0.0
        torch.testing.assert_close(gradients["weight"] * settings.weight, found.outputs["cost"].sum())
    assert (gradients["spheres"][..., 3] == 0.0).all()


def test_outputs_do_not_depend_on_what_else_is_asked() -> None:
    world, spheres, settings = kinds(), cloud(), Settings(activation_distance=0.1, weight=2.0)
    everything = evaluate(spheres, world, settings, outputs=OUTPUTS, retain=True).outputs
    for name in OUTPUTS:
        assert torch.equal(evaluate(spheres, world, settings, outputs=(name,)).outputs[name], everything[name]), name


def test_spheres_that_are_off_are_near_nothing() -> None:
    world, spheres = kinds(), cloud()
    spheres[0, 0, :10, 3] = -0.01
    spheres[0, 1, :10, 0] = float("nan")
    found = evaluate(spheres, world, Settings(activation_distance=5.0), outputs=OUTPUTS, checked=True).outputs
    for name, value in (("cost", 0.0), ("distance", float("inf")), ("instance", -1), ("face", -1), ("normal", 0.0)):
        assert (found[name][0, :, :10] == value).all(), name
        assert not (found[name][1] == value).all(), name
    assert (found["gradient"][0, :, :10] == 0.0).all()


def test_a_moved_mesh_is_another() -> None:
    shape, spheres = mesh_shapes.torus(16, 8), cloud()
    first = mesh(shape)
    world = World([Instance(first)])
    before = distances(world, spheres)
    grown = first.moved(torch.from_numpy(shape.vertices * 1.1).float())
    assert torch.equal(distances(world, spheres), before)
    built = Mesh.build(torch.from_numpy(shape.vertices * 1.1).float(), torch.from_numpy(shape.faces).long())
    for sign in ("auto", "winding", "rays"):
        after, wanted = (distances(World([Instance(one, sign=sign)]), spheres) for one in (grown, built))
        torch.testing.assert_close(after, wanted, atol=1e-6, rtol=1e-6)
    assert not grown.rebuilt and grown.growth == pytest.approx(1.0, abs=1e-5)
    assert grown.report.volume == pytest.approx(1.1**3 * first.report.volume, rel=1e-5)
    assert grown.vertices == len(shape.vertices) and grown.faces == len(shape.faces)


def test_shapes_are_shared() -> None:
    open_one = mesh(mesh_shapes.bowl())
    engine, before = engine_for(torch.device("cpu")), open_one.bytes
    world = World([Instance(open_one, AT), Instance(open_one, sign="rays"), Instance(Cuboid((1.0, 1.0, 1.0)))])
    assert world.bytes == before
    assert world.placed(engine) is world.placed(engine)
    moved = world.with_poses({0: AT})
    assert moved.instances[0].shape is open_one
    assert open_one.solid(engine, "winding") is open_one.solid(engine, "winding")


def test_a_field_of_curobo_is_where_curobo_has_it() -> None:
    size, world = 0.1, World([Instance(Cuboid((0.3, 0.2, 0.2)), [0.05, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0])])
    dims = [0.5, 0.6, 0.4]
    values = esdf(world, [0.0] * 3 + [1.0] + [0.0] * 3, dims, size, max_distance=10.0, semantics="curobo_field")
    # Spec section 5.
    along = [(np.arange(1, round(e / size) + 1) - round(e / (2 * size))) * size - size / 2 for e in dims]
    places = np.stack(np.meshgrid(*along, indexing="ij"), axis=-1)
    spheres = torch.from_numpy(np.concatenate([places, np.zeros((*places.shape[:3], 1))], axis=-1).astype(np.float32))
    torch.testing.assert_close(values, -distances(world, spheres), atol=1e-6, rtol=0.0)
