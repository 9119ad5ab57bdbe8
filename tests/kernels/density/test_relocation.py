"""Relocated dead Gaussians and added ones, against a reference, and the distribution of their sources."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lumigrad.kernels import ArgumentError, _native
from lumigrad.kernels.density import Draw, Parameters, add_gaussians, relocate
from support.backends.density_machines import SLOWEST
from support.training import density_relocation
from support.training.density_clouds import copy_of, gaussians, spheres

DRAW = Draw(seed=23, step=900)
MIN_OPACITY = 0.05


def opacities_of(parameters: Parameters) -> torch.Tensor:
    return torch.sigmoid(parameters.tensors["opacities"].cpu().double())


def assert_shared(found: Parameters, old: Parameters, sources: torch.Tensor, counts: torch.Tensor) -> None:
    """Checks copies of the old rows `sources`; where counts are positive, they are shared, and their moments are 0."""
    logits, scales = density_relocation.shared(old.tensors["opacities"], old.tensors["scales"], counts, MIN_OPACITY)
    made_over = counts[sources] > 0
    for name, tensor in old.tensors.items():
        values = found.tensors[name].cpu()
        if name in ("opacities", "scales"):
            expected = {"opacities": logits, "scales": scales}[name][sources]
            torch.testing.assert_close(values.double(), expected, rtol=2e-6, atol=2e-6)
            assert torch.equal(values[~made_over], tensor[sources][~made_over])
        else:
            assert torch.equal(values, tensor[sources]), name
    for name, moments in old.moments.items():
        for index, moment in enumerate(moments):
            expected = moment[sources]
            expected[made_over] = 0.0
            assert torch.equal(found.moments[name][index].cpu(), expected), f"moments of {name}"


@pytest.mark.parametrize("count", [2, 100, 1025, 2500])
def test_dead_ones_become_shares_of_living_ones(density_device: torch.device, count: int) -> None:
    old, cloud = gaussians(count, seed=2), gaussians(count, seed=2, device=density_device)
    alive = opacities_of(old) > MIN_OPACITY
    dead = torch.nonzero(~alive)[:, 0]
    assert 0 < len(dead) < count
    told = relocate(cloud, DRAW, min_opacity=MIN_OPACITY)
    assert (told.dead, told.relocated) == (len(dead), len(dead))
    rows = density_relocation.drawn(old.tensors["opacities"], alive, len(dead), DRAW, "relocate")
    sources = torch.arange(count)
    sources[dead] = rows
    assert_shared(cloud, old, sources, torch.bincount(rows, minlength=count))
    assert (opacities_of(cloud) > 0.999 * MIN_OPACITY).all()


@pytest.mark.parametrize("count", [1, 20, 1025, 2500])
def test_added_ones_are_shares_behind_the_others(density_device: torch.device, count: int) -> None:
    old, cloud = gaussians(count, seed=3), gaussians(count, seed=3, device=density_device)
    told = add_gaussians(cloud, DRAW, cap=10_000, min_opacity=MIN_OPACITY)
    assert told.added == int(1.05 * count) - count == told.parameters.count - count
    everyone = torch.ones(count, dtype=torch.bool)
    rows = density_relocation.drawn(old.tensors["opacities"], everyone, told.added, DRAW, "add")
    sources = torch.cat([torch.arange(count), rows])
    assert_shared(told.parameters, old, sources, torch.bincount(rows, minlength=count))
    for name, tensor in old.tensors.items():
        assert torch.equal(cloud.tensors[name].cpu(), tensor), f"{name} was changed"


@pytest.mark.parametrize(
    ("cap", "growth", "added"), [(1000, 0.05, 0), (10, 0.05, 0), (1020, 0.05, 20), (9999, 1.0, 1000)]
)
def test_cap_and_growth_bound_what_is_added(density_device: torch.device, cap: int, growth: float, added: int) -> None:
    cloud = gaussians(1000, device=density_device)
    told = add_gaussians(cloud, DRAW, cap=cap, growth=growth)
    assert (told.added, told.parameters.count) == (added, 1000 + added)


def with_rows(count: int, device: torch.device) -> Parameters:
    """Gaussians with a tensor that holds their row numbers."""
    cloud = gaussians(count, seed=9, device=device)
    rows = torch.arange(count, dtype=torch.float32, device=device)
    return Parameters({**cloud.tensors, "row": rows[:, None].clone()}, cloud.moments)


@pytest.mark.parametrize("logit", [-20.0, 5.0])
@pytest.mark.parametrize("count", [0, 1, 300])
def test_where_all_are_dead_or_all_alive_nothing_happens(
    density_device: torch.device, count: int, logit: float
) -> None:
    cloud = gaussians(count, device=density_device)
    cloud.tensors["opacities"][:] = logit
    before = copy_of(cloud)
    told = relocate(cloud, DRAW)
    assert (told.dead, told.relocated) == (count if logit < 0 else 0, 0)
    for name, tensor in before.tensors.items():
        assert torch.equal(tensor, cloud.tensors[name])
    assert all(torch.equal(a, b) for a, b in zip(before.moments["sh"], cloud.moments["sh"], strict=True))


def test_opacities_that_are_no_numbers_are_dead_and_never_drawn(density_device: torch.device) -> None:
    cloud = with_rows(200, density_device)
    cloud.tensors["opacities"][:] = float("nan")
    assert add_gaussians(cloud, DRAW, cap=10**6).added == 0
    assert relocate(cloud, DRAW).dead == 200
    cloud.tensors["opacities"][7] = 1.0
    told = add_gaussians(cloud, DRAW, cap=10**6)
    assert told.parameters.tensors["row"][200:, 0].tolist() == [7.0] * 10
    assert relocate(cloud, DRAW).relocated == 199
    assert torch.isfinite(cloud.tensors["opacities"]).all() and (cloud.tensors["row"] == 7.0).all()


def test_tiny_opacities_are_drawn_too(density_device: torch.device) -> None:
    cloud = with_rows(100, density_device)
    cloud.tensors["opacities"][:] = -200.0
    told = add_gaussians(cloud, DRAW, cap=10**6, growth=1.0)
    assert len(set(told.parameters.tensors["row"][100:, 0].tolist())) > 40
    assert torch.isfinite(told.parameters.tensors["scales"]).all()


def test_same_draw_gives_the_same_bits_everywhere(density_device: torch.device, keep_threads: None) -> None:
    def run(device: torch.device) -> list[torch.Tensor]:
        cloud = gaussians(5000, seed=4, device=device)
        relocate(cloud, DRAW)
        grown = add_gaussians(cloud, DRAW, cap=10**6).parameters
        return [tensor.cpu() for tensor in (*grown.tensors.values(), *grown.moments["opacities"])]

    with SLOWEST() as device:
        expected = run(device)
    for threads in (1, 3):
        _native.set_thread_count(threads)
        assert all(torch.equal(a, b) for a, b in zip(run(density_device), expected, strict=True))


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"parameters": {}}, "parameters"),
        ({"parameters": spheres(4)}, "parameters"),
        ({"draw": 4}, "draw"),
        ({"min_opacity": 1.0}, "min_opacity"),
        ({"min_opacity": -0.1}, "min_opacity"),
        ({"cap": -1}, "cap"),
        ({"cap": 1.5}, "cap"),
        ({"growth": 1.01}, "growth"),
        ({"growth": float("nan")}, "growth"),
    ],
)
def test_spoiled_argument_is_named(change: dict[str, Any], argument: str) -> None:
    arguments = {"parameters": gaussians(5), "draw": DRAW, "min_opacity": 0.005, **change}
    with pytest.raises(ArgumentError) as caught:
        if argument not in ("cap", "growth"):
            relocate(**arguments)
        add_gaussians(**{"cap": 10, **arguments})
    assert caught.value.argument == argument
