"""Applied plans: rows are copied bit for bit, children follow the formulas, and moments of new rows are 0."""

from __future__ import annotations

import pytest
import torch

from lumigrad.kernels import ArgumentError, _native
from lumigrad.kernels.density import Draw, Parameters, Plan, Statistics, Thresholds, apply, plan, reset_opacities
from support.training import density_growth
from support.training.density_clouds import copy_of, gaussians, spheres

DRAW = Draw(seed=17, step=500)
THRESHOLDS = {False: Thresholds(), True: Thresholds(revised_opacity=True)}


def planned(parameters: Parameters, revised: bool = False) -> Plan:
    count, random = parameters.count, torch.Generator().manual_seed(1)
    gradient = (torch.rand(count, generator=random) * 4e-4).to(parameters.device)
    views = torch.ones(count, dtype=torch.int32, device=parameters.device)
    statistics = Statistics(gradient, views, torch.zeros_like(gradient))
    return plan(parameters, statistics, THRESHOLDS[revised], extent=2.0, after_reset=True)


def assert_equal(first: Parameters, second: Parameters) -> None:
    for name, tensor in first.tensors.items():
        assert torch.equal(tensor.cpu(), second.tensors[name].cpu()), name
    for name, moments in first.moments.items():
        for index, moment in enumerate(moments):
            assert torch.equal(moment.cpu(), second.moments[name][index].cpu()), f"moments of {name}"


@pytest.mark.parametrize("kind", [gaussians, spheres])
@pytest.mark.parametrize("count", [1, 1025, 3000])
def test_rows_are_copies_but_for_what_children_have_of_their_own(
    density_device: torch.device, kind: type[gaussians], count: int
) -> None:
    cpu, cloud = kind(count), kind(count, device=density_device)
    before = copy_of(cloud)
    to = planned(cloud)
    grown = apply(to, cloud, DRAW).parameters
    assert_equal(before, cloud)
    sources, old, own = to.sources.cpu().long(), to.kept + to.cloned, {"means", "scales", "positions", "radii"}
    assert list(grown.tensors) == list(cpu.tensors)
    for name, tensor in cpu.tensors.items():
        found, expected = grown.tensors[name].cpu(), tensor[sources]
        rows = slice(0, old if name in own else None)
        assert torch.equal(found[rows], expected[rows]), name
    for name, moments in cpu.moments.items():
        for index, moment in enumerate(moments):
            expected = moment[sources]
            expected[to.kept :] = 0.0
            assert torch.equal(grown.moments[name][index].cpu(), expected), name


@pytest.mark.parametrize("revised", [False, True])
@pytest.mark.parametrize("kind", [gaussians, spheres])
def test_children_are_those_of_the_reference(
    density_device: torch.device, kind: type[gaussians], revised: bool
) -> None:
    cpu, cloud = kind(2000), kind(2000, device=density_device)
    to = planned(cloud, revised)
    assert to.split > 100
    grown, first = apply(to, cloud, DRAW).parameters, to.kept + to.cloned
    split = to.sources[first : first + to.split].cpu().long()
    for name, expected in density_growth.children(cpu, split, DRAW, revised).items():
        found = grown.tensors[name][first:].cpu().double()
        torch.testing.assert_close(found, expected, rtol=2e-6, atol=2e-6)
    if kind is gaussians and not revised:
        assert torch.equal(grown.tensors["opacities"][first:].cpu(), cpu.tensors["opacities"][split].repeat(2))


def test_nothing_to_do_gives_copies(density_device: torch.device) -> None:
    cloud = gaussians(3000, device=density_device)
    statistics = Statistics.zeros(cloud)
    nothing = plan(cloud, statistics, Thresholds(prune_opacity=0.0), extent=1.0, after_reset=False)
    grown = apply(nothing, cloud, DRAW).parameters
    assert_equal(cloud, grown)
    assert grown.tensors["means"].data_ptr() != cloud.tensors["means"].data_ptr()


def test_none_may_be_left_and_none_may_be_there(density_device: torch.device) -> None:
    cloud = gaussians(100, device=density_device)
    cloud.tensors["opacities"][:] = -10.0
    empty = apply(planned(cloud), cloud, DRAW).parameters
    assert empty.count == 0 and empty.tensors["sh"].shape == (0, 4, 3) and empty.moments["sh"][1].shape == (0, 4, 3)
    assert apply(planned(empty), empty, DRAW).parameters.count == 0


def test_many_tensors_and_odd_widths_go_along(density_device: torch.device) -> None:
    cloud = spheres(1100, device=density_device)
    wide = {f"feature {width}": torch.randn(1100, width).to(density_device) for width in range(40)}
    cloud = Parameters({**cloud.tensors, **wide})
    to = planned(cloud)
    grown = apply(to, cloud, DRAW).parameters
    for name, tensor in wide.items():
        assert torch.equal(grown.tensors[name], tensor[to.sources.long()]), name


def test_same_draw_gives_the_same_bits(density_device: torch.device, keep_threads: None) -> None:
    cloud = gaussians(5000, device=density_device)
    first = apply(planned(cloud), cloud, DRAW).parameters
    for threads in (1, 3):
        _native.set_thread_count(threads)
        assert_equal(first, apply(planned(cloud), cloud, DRAW).parameters)
    other = apply(planned(cloud), cloud, Draw(DRAW.seed, DRAW.step + 1)).parameters
    assert not torch.equal(other.tensors["means"], first.tensors["means"])


@pytest.mark.parametrize("kind", [gaussians, spheres])
def test_reset_lowers_opacities_and_forgets_their_moments(density_device: torch.device, kind: type[gaussians]) -> None:
    cloud = kind(500, device=density_device)
    before = copy_of(cloud)
    cloud.tensors["opacities"].requires_grad_()
    reset_opacities(cloud, 0.02)
    raw, old = cloud.tensors["opacities"].detach().cpu(), before.tensors["opacities"].cpu()
    found, was = (torch.sigmoid(raw), torch.sigmoid(old)) if kind is gaussians else (raw, old)
    torch.testing.assert_close(found, was.clamp(max=0.02), rtol=1e-6, atol=0)
    assert not any(moment.any() for moment in cloud.moments["opacities"])
    assert torch.equal(
        cloud.moments["means" if kind is gaussians else "positions"][0].cpu(), before.moments[before.leader][0].cpu()
    )


def test_spoiled_arguments_are_named() -> None:
    cloud, other = gaussians(5), gaussians(6)
    to = planned(cloud)
    with pytest.raises(ArgumentError, match=r"^plan: expected one of 6 rows, got 5$"):
        apply(to, other, DRAW)
    with pytest.raises(ArgumentError, match=r"^plan: expected a Plan"):
        apply(to.sources, cloud, DRAW)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"^draw: "):
        apply(to, cloud, 0)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"^maximum: expected a value in \(0, 1\), got 1.0$"):
        reset_opacities(cloud, 1.0)
    with pytest.raises(ArgumentError, match=r"^parameters: expected a tensor 'opacities'"):
        reset_opacities(spheres(5, opacities=False))
