"""PyTorch's operators inside torch.func and forward-mode differentiation, and with lists in place of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

from lumigrad.client import Client, Cuboid, InvalidArgument
from lumigrad.client.compat.gsplat import rasterization, rasterization_2dgs
from lumigrad.client.torch import mesh_distance, render_gaussians, render_gaussians_2d, render_spheres
from support.torch_scene import COUNT, SIZE, scene


def spheres() -> dict[str, torch.Tensor]:
    found = scene()
    camera = torch.tensor([0.0, 0, 0, 0, 0, 0, 1, 1])
    return {
        **{"positions": found["means"], "colors": found["colors"], "radii": torch.full((COUNT,), 0.4)},
        **{"cam_params": camera, "opacities": found["opacities"], "background": torch.zeros(3)},
    }


OF_SPHERES = {**SIZE, "gamma": 0.1, "max_depth": 9.0}
# Each operator as a function of inputs by name, and those inputs.
OPERATORS: dict[str, tuple[Callable[..., Any], dict[str, torch.Tensor]]] = {
    "render_gaussians": (lambda **given: render_gaussians(**given, **SIZE).color, scene()),
    "render_gaussians_2d": (lambda **given: render_gaussians_2d(**given, **SIZE).color, scene()),
    "render_spheres": (lambda **given: render_spheres(**given, **OF_SPHERES).color, spheres()),
    "mesh_distance": (
        lambda **given: mesh_distance(**given, world=Cuboid((1, 1, 1)), activation_distance=9.0).cost,
        {"spheres": torch.rand(COUNT, 4), "poses": torch.zeros(1, 3), "weight": torch.tensor(1.0)},
    ),
    "rasterization": (lambda **given: rasterization(**given, **SIZE)[0], scene()),
    "rasterization_2dgs": (lambda **given: rasterization_2dgs(**given, **SIZE)[0], scene()),
}


pytestmark = pytest.mark.usefixtures("target")


def dual(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], Any]:
    def call(value: torch.Tensor) -> Any:
        with forward_ad.dual_level():
            return function(forward_ad.make_dual(value, torch.ones_like(value)))

    return call


TRANSFORMS: dict[str, Callable[[Callable[[torch.Tensor], torch.Tensor]], Callable[[torch.Tensor], Any]]] = {
    "grad": torch.func.grad,
    "vmap": lambda function: lambda value: torch.func.vmap(function)(value[None]),
    "jvp": lambda function: lambda value: torch.func.jvp(function, (value,), (value,)),
    "vjp": lambda function: lambda value: torch.func.vjp(function, value),
    "jacrev": torch.func.jacrev,
    "jacfwd": torch.func.jacfwd,
    "forward mode": dual,
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", OPERATORS)
def test_transformations_are_refused_by_the_name_of_the_tensor(name: str, transform: str):
    operator, given = OPERATORS[name]
    found = "torch.func" if transform != "forward mode" else "forward-mode differentiation"
    for key, value in given.items():
        run = TRANSFORMS[transform](lambda moved, key=key: operator(**{**given, key: moved}).sum())
        with pytest.raises(InvalidArgument, match=rf"^{key}: expected a plain tensor, got one .*{found}; .*autograd"):
            run(value)


@pytest.mark.parametrize("name", OPERATORS)
def test_calls_without_transformed_tensors_are_refused_too(name: str):
    operator, given = OPERATORS[name]
    with pytest.raises(InvalidArgument, match=rf"^{name}: expected a call outside of torch.func, got one inside"):
        torch.func.grad(lambda factor: factor * operator(**given).sum())(torch.tensor(2.0))


def test_gradients_that_are_mapped_are_refused():
    operator, given = OPERATORS["render_spheres"]
    run = lambda colors: operator(**{**given, "colors": colors}).sum(dim=(0, 1))  # noqa: E731
    with pytest.raises(InvalidArgument, match=r"^color: expected a plain gradient, got one of is_grads_batched=True"):
        torch.autograd.functional.jacobian(run, given["colors"], vectorize=True)


@pytest.mark.parametrize("name", ["render_gaussians", "render_gaussians_2d", "render_spheres", "mesh_distance"])
def test_what_the_refusal_advises_works(name: str):
    operator, given = OPERATORS[name]
    key = next(iter(given))
    value = given[key].clone().requires_grad_()
    by_backward = torch.autograd.grad(operator(**{**given, key: value}).sum(), value)[0]
    jacobian = torch.autograd.functional.jacobian(lambda moved: operator(**{**given, key: moved}).sum(), given[key])
    assert by_backward.any()
    torch.testing.assert_close(jacobian, by_backward)


@pytest.mark.parametrize("name", ["render_gaussians", "render_gaussians_2d", "render_spheres", "mesh_distance"])
def test_lists_stand_for_tensors(name: str):
    operator, given = OPERATORS[name]
    lists = {key: value.tolist() for key, value in given.items()}
    assert torch.equal(operator(**lists), operator(**given))


@pytest.mark.parametrize("background", [{"background": [0.1, 0.2, 0.3]}, {"background": [[0.1, 0.2, 0.3]]}], ids=str)
@pytest.mark.parametrize("operator", [render_gaussians, render_gaussians_2d])
def test_lists_have_backgrounds_too(client: Client, operator: Any, background: dict[str, Any]):
    given = scene()
    harmonics = torch.zeros(COUNT, 4, 3)
    tensors = {key: torch.tensor(value) for key, value in background.items()}
    for change in ({}, {"colors": harmonics, "sh_degree": 1}, {"scales": given["scales"][:, :2]}):
        if operator is render_gaussians and "scales" in change:
            continue
        changed = {**given, **change}
        lists = {key: value.tolist() if isinstance(value, torch.Tensor) else value for key, value in changed.items()}
        found = operator(**lists, **background, **SIZE, client=client).color
        assert torch.equal(found, operator(**changed, **tensors, **SIZE, client=client).color)
    with pytest.raises(InvalidArgument, match=rf"^{next(iter(background))}: expected shape"):
        operator(**lists, **{key: [1.0, 2.0] for key in background}, **SIZE, client=client)
