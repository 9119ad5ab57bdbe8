"""Each drop-in without gradients, in inference mode, with nothing to draw, and with axes of 1 before its tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch

from lumigrad.client.compat import curobo, gsplat, pulsar
from lumigrad.client.compat.diff_gaussian_rasterization import GaussianRasterizationSettings, GaussianRasterizer

WIDTH, HEIGHT, COUNT = 24, 16, 20
SIZE = {"width": WIDTH, "height": HEIGHT}
Results = dict[str, torch.Tensor]


def scene(count: int, lead: tuple[int, ...]) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "means": torch.randn(COUNT, 3, generator=generator) * 0.5 + torch.tensor([0, 0, 4.0]),
        "quats": torch.nn.functional.normalize(torch.randn(COUNT, 4, generator=generator)),
        "scales": torch.full((COUNT, 3), 0.1),
        "opacities": torch.full((COUNT,), 0.5),
        "colors": torch.rand(COUNT, 3, generator=generator),
    }
    given = {name: value[:count].expand(*lead, -1, *value.shape[1:]).clone() for name, value in tensors.items()}
    return {name: value.requires_grad_() for name, value in given.items()}


def cameras(lead: tuple[int, ...]) -> dict[str, torch.Tensor]:
    k = torch.tensor([[20.0, 0, 12], [0, 20, 8], [0, 0, 1]])
    return {"viewmats": torch.eye(4).expand(*lead, 2, 4, 4), "Ks": k.expand(*lead, 2, 3, 3)}


def rasterization(count: int, lead: tuple[int, ...]) -> Results:
    found = {}
    for options in ({}, {"packed": False, "absgrad": True}, {"packed": False, "with_ut": True, "with_eval3d": True}):
        given = {name: value * 1.0 for name, value in scene(count, lead).items()}
        image, alpha, meta = gsplat.rasterization(**given, **cameras(lead), **SIZE, render_mode="RGB+ED", **options)
        found |= {f"{name} {options}": value for name, value in {"image": image, "alpha": alpha}.items()}
        found |= {f"{name} {options}": meta[name] for name in ("radii", "means2d", "depths", "conics", "opacities")}
    return found


def rasterization_2dgs(count: int, lead: tuple[int, ...]) -> Results:
    *images, meta = gsplat.rasterization_2dgs(
        **scene(count, lead), **cameras(lead), **SIZE, render_mode="RGB+ED", distloss=True
    )
    names = ("image", "alpha", "normals", "surface", "distortion", "median")
    return {**dict(zip(names, images, strict=True)), "ray_transforms": meta["ray_transforms"]}


def fully_fused_projection(count: int, lead: tuple[int, ...]) -> Results:
    given, found = scene(count, lead), {}
    for packed in (False, True):
        values = gsplat.fully_fused_projection(
            given["means"], None, given["quats"], given["scales"], *cameras(lead).values(), WIDTH, HEIGHT, packed=packed
        )
        found |= {f"{packed} {index}": value for index, value in enumerate(values) if value is not None}
    return found


def inria(count: int, lead: tuple[int, ...]) -> Results:
    tangents, view, given = (0.6, 0.4), torch.eye(4), scene(count, ())
    film = torch.zeros(4, 4)
    film[0, 0], film[1, 1], film[2, 2], film[3, 2], film[2, 3] = 1 / tangents[0], 1 / tangents[1], 1.0001, -0.01, 1
    settings = GaussianRasterizationSettings(
        HEIGHT, WIDTH, *tangents, torch.zeros(3), 1.0, view.expand(*lead, 4, 4), film.expand(*lead, 4, 4), 0,
        torch.zeros(3).expand(*lead, 3),
    )  # fmt: skip
    image, radii, depth = GaussianRasterizer(settings)(
        means3D=given["means"],
        means2D=torch.zeros(count, 3),
        opacities=given["opacities"].reshape(*lead, count, 1),
        colors_precomp=given["colors"],
        scales=given["scales"],
        rotations=given["quats"],
    )
    return {"image": image, "radii": radii, "depth": depth}


def spheres(count: int, lead: tuple[int, ...]) -> Results:
    given = scene(count, lead)
    camera = torch.tensor([0.0, 0, 0, 0, 0, 0, 1.0, 1.0]).expand(*lead, 8).clone()
    image, info = pulsar.Renderer(WIDTH, HEIGHT, 100)(
        given["means"], given["colors"], given["scales"][..., 0].contiguous(), camera,
        gamma=0.1, max_depth=12.0, return_forward_info=True,
    )  # fmt: skip
    # Ids are bit patterns, not numbers.
    return {"image": image, "info": info.view(torch.int32)}


def collisions(count: int, lead: tuple[int, ...]) -> Results:
    tensors = curobo.TensorDeviceType(torch.device("cpu"))
    model = curobo.WorldConfig(cuboid=[curobo.Cuboid("table", (0, 0, 4.0, 1, 0, 0, 0), dims=(1.0, 1.0, 1.0))])
    world = curobo.WorldMeshCollision(
        curobo.WorldCollisionConfig(tensor_args=tensors, max_distance=0.5, world_model=model)
    )
    given = scene(count, ())
    queries = torch.cat([given["means"], given["scales"][:, :1]], -1)[None, None]
    buffer = curobo.CollisionQueryBuffer.initialize_from_shape(queries.shape, tensors, world.collision_types)
    weight, distance = torch.ones(1).expand(*lead, 1), torch.full((1,), 0.1).expand(*lead, 1)
    return {"cost": world.get_sphere_distance(queries, buffer, weight, distance).clone()}


DROP_INS: dict[str, Callable[[int, tuple[int, ...]], Results]] = {
    each.__name__: each
    for each in (rasterization, rasterization_2dgs, fully_fused_projection, inria, spheres, collisions)
}


def equal(found: Results, expected: Results) -> None:
    assert found.keys() == expected.keys()
    for name, value in found.items():
        # Ignores axes of 1, which gsplat's surface normals lose.
        torch.testing.assert_close(value.squeeze(), expected[name].squeeze(), rtol=0, atol=0, msg=name, equal_nan=True)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode], ids=lambda mode: mode.__name__)
@pytest.mark.parametrize("name", DROP_INS)
def test_results_without_gradients_are_those_with_them(name: str, mode: Callable[[], AbstractContextManager[None]]):
    expected = DROP_INS[name](COUNT, ())
    with mode():
        found = DROP_INS[name](COUNT, ())
        equal(found, expected)
    assert not any(value.requires_grad for value in found.values())
    assert any(value.any() for value in found.values())


@pytest.mark.parametrize("name", DROP_INS)
def test_nothing_to_draw_is_no_error(name: str):
    if name == "spheres":
        # The original raises this error as well.
        with pytest.raises(pulsar.PulsarArgumentError, match=r"^vert_pos: .*, got 0"):
            spheres(0, ())
        return
    with torch.inference_mode():
        found = DROP_INS[name](0, ())
        assert all(value.isfinite().all() for value in found.values())
    equal(DROP_INS[name](0, ()), found)
    for label, value in found.items():
        if label.startswith(("image", "alpha")):
            assert math.prod(value.shape) and not value.any(), label


@pytest.mark.parametrize("name", DROP_INS)
def test_axes_of_one_change_nothing(name: str):
    equal(DROP_INS[name](COUNT, (1,)), DROP_INS[name](COUNT, ()))
