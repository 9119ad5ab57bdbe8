"""Tensors and numbers in the forms that PyTorch's operators accept, and which of them get gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from lumigrad.client import Client, Cuboid, InvalidArgument
from lumigrad.client.compat import gsplat
from lumigrad.client.torch import mesh_distance, render_gaussians, render_gaussians_2d, render_spheres
from support.torch_scene import COUNT, SIZE, scene

pytestmark = pytest.mark.usefixtures("target")


def gaussians(**changes: Any) -> torch.Tensor:
    return render_gaussians(**{**scene(), **changes}, **SIZE).color


def surfels(**changes: Any) -> torch.Tensor:
    return render_gaussians_2d(**{**scene(), **changes}, **SIZE).color


def spheres(**changes: Any) -> torch.Tensor:
    given = {"positions": scene()["means"], "colors": scene()["colors"], "radii": torch.full((COUNT,), 0.4)}
    given |= {"cam_params": torch.tensor([0.0, 0, 0, 0, 0, 0, 1, 1])}
    return render_spheres(**{**given, "gamma": 0.1, "max_depth": 9.0, **changes}, **SIZE).color


def distances(**changes: Any) -> torch.Tensor:
    given = {"spheres": scene()["means"][None, :, None] - torch.tensor([0, 0, 5.0]), "activation_distance": 0.5}
    return mesh_distance(**{**given, "world": Cuboid((1, 1, 1)), **changes}).cost


def volumes(**changes: Any) -> torch.Tensor:
    return gsplat.rasterization(**{**scene(), **changes}, **SIZE)[0]


OPERATORS = [gaussians, surfels, spheres, distances, volumes]
# An input of each operator.
FIRST = {gaussians: "means", surfels: "means", spheres: "positions", distances: "spheres", volumes: "means"}


def parts(tensor: torch.Tensor) -> Any:
    """A tensor as lists of numbers and of tensors without axes that require a gradient."""
    if tensor.ndim:
        return [parts(row) if k else row.tolist() for k, row in enumerate(tensor)]
    return tensor.clone().requires_grad_()


def leaves(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [leaf for part in value for leaf in leaves(part)] if isinstance(value, list) else []


@pytest.mark.parametrize(
    ("operator", "name", "value"),
    [
        (gaussians, "background", torch.tensor([0.1, 0.2, 0.3])),
        (gaussians, "means", scene()["means"]),
        (gaussians, "Ks", scene()["Ks"].expand(2, 3, 3)),
        (surfels, "background", torch.tensor([0.1, 0.2, 0.3])),
        (spheres, "cam_params", torch.tensor([0.1, 0.1, 0, 0.1, 0.1, 0, 1, 1])),
        (distances, "poses", torch.tensor([[0.0, 0.1, 0.2, 1.0, 0.0, 0.0, 0.0], [0.5, 0.1, 0.2, 1.0, 0.1, 0.0, 0.0]])),
    ],
)
def test_tensors_in_lists_get_their_gradients(operator: Callable[..., torch.Tensor], name: str, value: torch.Tensor):
    fixed = {"viewmats": torch.eye(4).expand(2, 4, 4)} if name == "Ks" else {}
    fixed |= {"world": [Cuboid((1, 1, 1)), Cuboid((0.5, 1, 1))]} if name == "poses" else {}
    whole, listed = value.clone().requires_grad_(), parts(value)
    result = operator(**{name: whole}, **fixed)
    weights = torch.rand(result.shape, generator=torch.Generator().manual_seed(1))
    (expected,) = torch.autograd.grad((result * weights).sum(), whole)
    assert leaves(listed)
    found = operator(**{name: listed}, **fixed)
    torch.testing.assert_close(found, result)
    # The positions of the parts that are tensors.
    places = leaves(parts(torch.arange(value.numel(), dtype=torch.float64).reshape(value.shape)))
    slopes = torch.autograd.grad((found * weights).sum(), leaves(listed))
    torch.testing.assert_close(torch.stack(slopes), expected.flatten()[[int(place) for place in places]])


def test_matrices_in_lists_get_their_gradients():
    views = [torch.eye(4, requires_grad=True), torch.eye(4)]
    whole = torch.eye(4).repeat(2, 1, 1).requires_grad_()
    for given in (views, whole):
        gaussians(viewmats=given, Ks=scene()["Ks"].expand(2, 3, 3)).square().sum().backward()
    torch.testing.assert_close(views[0].grad, whole.grad[0])


@pytest.mark.parametrize("operator", OPERATORS)
def test_arrays_with_masked_values_are_refused(operator: Callable[..., torch.Tensor]):
    name = FIRST[operator]
    values = scene()["means"].numpy() if operator is not distances else np.zeros((1, COUNT, 1, 3))
    masked = np.ma.masked_array(values, mask=np.arange(values.size).reshape(values.shape) == 4)
    with pytest.raises(InvalidArgument, match=rf"^{name}: expected values everywhere, got .* 1 of 36 masked"):
        operator(**{name: masked})
    with pytest.raises(InvalidArgument, match=rf"^{name}: expected values everywhere, got .* 1 of 3 masked"):
        operator(**{name: [list(masked.reshape(-1, 3))]})


@pytest.mark.parametrize(
    ("operator", "name"),
    [
        *((gaussians, name) for name in ("near", "eps2d", "scale_modifier")),
        *((surfels, name) for name in ("near", "far")),
        *((spheres, name) for name in ("max_depth", "min_depth")),
        *((distances, name) for name in ("activation_distance", "max_distance", "time_step_s")),
    ],
)
def test_numbers_without_a_gradient_must_not_require_one(operator: Callable[..., torch.Tensor], name: str):
    number = torch.tensor(1.5, requires_grad=True)
    more = {"speed_metric": True} if name == "time_step_s" else {}
    with pytest.raises(InvalidArgument, match=rf"^{name}: expected .* requires no gradient.* pass {name}.detach\(\)"):
        operator(**{name: number}, **more)
    detached = operator(**{name: number.detach()}, **more)
    with torch.no_grad():
        assert torch.equal(operator(**{name: number}, **more), detached)


@pytest.mark.parametrize("operator", [gaussians, surfels, spheres])
@pytest.mark.parametrize("is_trained", [False, True])
def test_a_name_that_no_argument_has_is_refused_as_one(operator: Callable[..., torch.Tensor], is_trained: bool):
    value = torch.zeros(1, 3, requires_grad=is_trained)
    with pytest.raises(InvalidArgument, match=r"^backgrounds: expected a field of (Gaussian|Sphere)Settings: "):
        operator(backgrounds=value)


def test_coefficients_without_a_gradient_must_not_require_one():
    with pytest.raises(InvalidArgument, match=r"^distortion: expected .* requires no gradient"):
        gaussians(distortion=torch.zeros(4, requires_grad=True))


@pytest.mark.parametrize("operator", [gaussians, surfels, spheres])
def test_one_number_is_the_background_of_all_channels(client: Client, operator: Callable[..., torch.Tensor]):
    expected = operator(background=[0.25] * 3)
    for number in (0.25, np.float32(0.25), np.array(0.25), torch.tensor(0.25)):
        assert torch.equal(operator(background=number), expected), repr(number)
    number, channels = torch.tensor(0.25, requires_grad=True), torch.full((3,), 0.25, requires_grad=True)
    for each in (number, channels):
        operator(background=each).square().sum().backward()
    torch.testing.assert_close(number.grad, channels.grad.sum())


def test_the_default_device_of_a_program_changes_nothing() -> None:
    """Tensors made on the device "meta" have no values, so that a call which makes one by default fails."""
    shared = {**scene(), **SIZE}
    lists = {"Ks": shared["Ks"].tolist(), "background": [0.1, torch.tensor(0.2), 0.3]}
    ball = {"positions": shared["means"], "colors": shared["colors"], "radii": torch.full((COUNT,), 0.4), **SIZE}
    ball |= {"cam_params": [0.0, 0, 0, 0, 0, 0, 1, 1], "gamma": 0.1, "max_depth": 9.0}
    near = {"spheres": torch.rand(1, 2, 3, 4), "world": Cuboid((1, 1, 1)), "activation_distance": 0.5}
    calls: list[tuple[Callable[..., Any], str, dict[str, Any]]] = [
        (render_gaussians, "means", {**shared, **lists, "outputs": ("means2d", "expected_depth")}),
        (render_gaussians_2d, "means", {**shared, "outputs": ("surface_normals",)}),
        (render_spheres, "positions", ball),
        (mesh_distance, "spheres", near),
        (gsplat.rasterization, "means", {**shared, "render_mode": "RGB+ED"}),
        (gsplat.rasterization, "means", {**shared, "render_mode": "D", "packed": False}),
    ]
    for function, name, given in calls:
        found = []
        for device in ("cpu", "meta"):
            leaf = given[name].clone().requires_grad_()
            with torch.device(device):
                result = function(**{**given, name: leaf})
                centres = result[2]["means2d"] if function is gsplat.rasterization else result[0]
                (result[0].sum() + centres.sum()).backward()
            found.append((result[0].detach(), leaf.grad))
        for expected, actual in zip(*found, strict=True):
            assert torch.equal(actual, expected), function
