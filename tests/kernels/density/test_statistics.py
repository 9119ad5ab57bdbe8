"""Statistics of each row, summed over views."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lumigrad.kernels import ArgumentError
from lumigrad.kernels.density import Statistics, accumulate, accumulate_spheres
from support.refusals import refused
from support.training import density_growth
from support.training.density_clouds import gaussians, spheres

WIDTH, HEIGHT = 640, 480


def views_of(views: int, count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    gradient = torch.randn(views, count, 2, generator=random) * 1e-5
    return gradient, torch.randint(-3, 60, (views, count, 2), generator=random, dtype=torch.int32)


@pytest.mark.parametrize("views", [1, 3])
@pytest.mark.parametrize("count", [0, 1, 1025, 4000])
def test_gaussians_are_summed_over_views_and_steps(density_device: torch.device, views: int, count: int) -> None:
    found = Statistics.zeros(gaussians(count, device=density_device))
    expected = [torch.zeros(count, dtype=torch.float64) for _ in range(3)]
    for step in range(2):
        gradient, radii = views_of(views, count, step)
        accumulate(found, gradient.to(density_device), radii.to(density_device), width=WIDTH, height=HEIGHT)
        lengths, seen, largest = density_growth.accumulated(gradient, radii, WIDTH, HEIGHT)
        expected = [expected[0] + lengths, expected[1] + seen, torch.maximum(expected[2], largest)]
    torch.testing.assert_close(found.gradient.cpu().double(), expected[0], rtol=1e-6, atol=1e-12)
    assert torch.equal(found.views.cpu().double(), expected[1])
    torch.testing.assert_close(found.radii.cpu().double(), expected[2], rtol=1e-6, atol=1e-12)


def test_spheres_are_counted_where_they_touched_a_pixel(density_device: torch.device) -> None:
    random = torch.Generator().manual_seed(1)
    gradient = torch.randn(500, 3, generator=random)
    touched = torch.randint(0, 3, (500,), generator=random, dtype=torch.int32)
    found = Statistics.zeros(spheres(500, device=density_device))
    for _ in range(2):
        accumulate_spheres(found, gradient.to(density_device), touched.to(density_device))
    seen = touched > 0
    expected = 2.0 * torch.where(seen, gradient.double().norm(dim=1), 0.0)
    torch.testing.assert_close(found.gradient.cpu().double(), expected, rtol=1e-6, atol=0)
    assert torch.equal(found.views.cpu(), 2 * seen.int())
    assert not found.radii.any()


def test_unseen_rows_that_are_not_finite_do_not_count(density_device: torch.device) -> None:
    found = Statistics.zeros(gaussians(3, device=density_device))
    gradient = torch.tensor([[[float("nan"), 1.0], [float("inf"), 0.0], [3e-3, 4e-3]]]).to(density_device)
    radii = torch.tensor([[[0, 0], [5, 0], [5, 3]]], dtype=torch.int32).to(density_device)
    accumulate(found, gradient, radii, width=2, height=2)
    torch.testing.assert_close(found.gradient.cpu(), torch.tensor([0.0, 0.0, 5e-3]))
    assert found.views.tolist() == [0, 0, 1]


GRADIENT, RADII = views_of(2, 5)
SPOILED: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "other statistics": ("statistics", {"statistics": 3}, ("Statistics", "int")),
    "of others": ("means2d_gradient", {"means2d_gradient": GRADIENT[:, :4]}, ("[any, 5, 2]", "[2, 4, 2]")),
    "double": ("means2d_gradient", {"means2d_gradient": GRADIENT.double()}, ("float32", "float64")),
    "radii of one view": ("radii", {"radii": RADII[:1]}, ("[2, 5, 2]", "[1, 5, 2]")),
    "radii as numbers": ("radii", {"radii": RADII.float()}, ("int32", "float32")),
    "radii as a list": ("radii", {"radii": RADII.tolist()}, ("int32", "list")),
    "radii elsewhere": ("radii", {"radii": RADII.to("meta")}, ("cpu", "meta")),
    "no film": ("width", {"width": 0}, ("pixels", "0")),
}


@pytest.mark.parametrize("name", SPOILED)
def test_spoiled_argument_is_named(name: str) -> None:
    argument, change, words = SPOILED[name]
    arguments = {"statistics": Statistics.zeros(gaussians(5)), "means2d_gradient": GRADIENT, "radii": RADII}
    given = {**arguments, "width": WIDTH, "height": HEIGHT, **change}
    refused(lambda: accumulate(**given), argument, *words)


def test_spoiled_spheres_are_named() -> None:
    statistics = Statistics.zeros(spheres(5))
    with pytest.raises(ArgumentError, match=r"^positions_gradient: .*\[5, 3\]"):
        accumulate_spheres(statistics, torch.zeros(5, 2), torch.zeros(5, dtype=torch.int32))
    with pytest.raises(ArgumentError, match=r"^touched: .*\[5\]"):
        accumulate_spheres(statistics, torch.zeros(5, 3), torch.zeros(4, dtype=torch.int32))


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"gradient": torch.zeros(5, 1)}, "gradient"),
        ({"gradient": [0.0] * 5}, "gradient"),
        ({"views": torch.zeros(5)}, "views"),
        ({"views": torch.zeros(4, dtype=torch.int32)}, "views"),
        ({"radii": torch.zeros(6)}, "radii"),
        ({"radii": torch.zeros(10)[::2]}, "radii"),
        ({"radii": torch.zeros(5, device="meta")}, "radii"),
    ],
)
def test_sums_that_do_not_fit_together_are_named(change: dict[str, Any], argument: str) -> None:
    sums = {"gradient": torch.zeros(5), "views": torch.zeros(5, dtype=torch.int32), "radii": torch.zeros(5)}
    refused(lambda: Statistics(**{**sums, **change}), argument)
