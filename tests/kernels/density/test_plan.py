"""Plans of which rows grow and which go, against a step-by-step reference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from lumigrad.kernels import ArgumentError, _native
from lumigrad.kernels.density import Parameters, Plan, Statistics, Thresholds, plan
from support.backends.cuda_devices import CudaDevice
from support.backends.density_machines import MACHINES, SLOWEST
from support.refusals import refused
from support.training import density_growth
from support.training.density_clouds import gaussians, spheres

EXTENT = 2.5
CASES: dict[str, tuple[Thresholds, bool]] = {
    "before a reset": (Thresholds(), False),
    "after a reset": (Thresholds(), True),
    "by radius": (Thresholds(split_radius=0.6, prune_radius=0.9), True),
    "radius before a reset": (Thresholds(prune_radius=0.9), False),
    "revised": (Thresholds(revised_opacity=True, prune_opacity=0.05), True),
    "no size too large": (Thresholds(prune_size=None), True),
    "prune only": (Thresholds(grow_gradient=float("inf")), True),
    "clone all": (Thresholds(grow_gradient=0.0, clone_size=float("inf")), False),
    "split all": (Thresholds(grow_gradient=0.0, clone_size=0.0), False),
}


def statistics_of(parameters: Parameters, seed: int = 0) -> Statistics:
    """Statistics with some rows that were never seen; about half of the others have gradients that make them grow."""
    count, random = parameters.count, torch.Generator().manual_seed(seed)
    views = torch.randint(0, 5, (count,), generator=random, dtype=torch.int32)
    gradient = torch.rand(count, generator=random) * 4e-4 * views
    radii = torch.rand(count, generator=random)
    return Statistics(*(tensor.to(parameters.device) for tensor in (gradient, views, radii)))


def planned(parameters: Parameters, name: str) -> Plan:
    thresholds, after_reset = CASES[name]
    return plan(parameters, statistics_of(parameters), thresholds, extent=EXTENT, after_reset=after_reset)


def expected_of(parameters: Parameters, name: str) -> density_growth.Growth:
    thresholds, after_reset = CASES[name]
    statistics = statistics_of(parameters)
    rows = density_growth.observed(parameters, statistics.gradient, statistics.views, statistics.radii)
    revised = thresholds.revised_opacity and parameters.gaussians
    return density_growth.growth(rows, thresholds, EXTENT, after_reset, revised)


def cloud(kind: str, count: int, device: torch.device | None = None) -> Parameters:
    if kind == "gaussians":
        return gaussians(count, device=device)
    return spheres(count, device=device, opacities=kind == "spheres")


@pytest.mark.parametrize("kind", ["gaussians", "spheres", "opaque spheres"])
@pytest.mark.parametrize("name", CASES)
def test_rows_are_those_of_the_reference(density_device: torch.device, kind: str, name: str) -> None:
    expected = expected_of(cloud(kind, 3000), name)
    found = planned(cloud(kind, 3000, density_device), name)
    assert found.sources.tolist() == expected.sources.tolist()
    assert (found.kept, found.cloned, found.split) == tuple(map(len, (expected.kept, expected.cloned, expected.split)))
    assert found.count == found.before + found.cloned + found.split - found.pruned
    assert found.sources.dtype == torch.int32


@pytest.mark.parametrize("count", [0, 1, 255, 1023, 1024, 1025])
def test_any_number_of_rows(density_device: torch.device, count: int) -> None:
    expected = expected_of(gaussians(count), "after a reset")
    assert (
        planned(gaussians(count, device=density_device), "after a reset").sources.tolist() == expected.sources.tolist()
    )


def test_all_rows_may_go(density_device: torch.device) -> None:
    rows = gaussians(2000, device=density_device)
    rows.tensors["opacities"][:] = -10.0
    found = planned(rows, "split all")
    assert (found.count, found.pruned) == (0, 2000)


def test_rows_that_are_no_numbers_go(density_device: torch.device) -> None:
    rows = gaussians(6, device=density_device)
    rows.tensors["opacities"][:] = 0.0
    rows.tensors["opacities"][1] = float("nan")
    for axis in range(3):
        rows.tensors["scales"][2 + axis, axis] = float("nan")
    for name in ("prune only", "split all", "before a reset"):
        assert set(planned(rows, name).sources.tolist()) <= {0, 5}


@pytest.mark.parametrize("name", ["after a reset", "revised"])
def test_plans_do_not_depend_on_threads_or_machines(
    density_device: torch.device, keep_threads: None, name: str
) -> None:
    with SLOWEST() as device:
        expected = planned(gaussians(20_000, device=device), name).sources
    for threads in (1, 3):
        _native.set_thread_count(threads)
        assert torch.equal(planned(gaussians(20_000, device=density_device), name).sources.cpu(), expected)


def test_threads_of_a_block_may_run_in_any_order(emulated_cuda: CudaDevice, thread_seed: int) -> None:
    rows = gaussians(3000)
    expected = planned(rows, "revised").sources
    emulated_cuda.native.set_seed(thread_seed)
    with MACHINES["emulation"]():
        assert torch.equal(planned(rows, "revised").sources, expected)


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"parameters": 1}, "parameters"),
        ({"statistics": None}, "statistics"),
        ({"statistics": Statistics.zeros(gaussians(4))}, "statistics"),
        ({"thresholds": 2e-4}, "thresholds"),
        ({"extent": 0.0}, "extent"),
        ({"extent": float("inf")}, "extent"),
        ({"extent": "1"}, "extent"),
    ],
)
def test_spoiled_argument_is_named(change: dict[str, Any], argument: str) -> None:
    rows = gaussians(5)
    arguments = {"parameters": rows, "statistics": Statistics.zeros(rows), "thresholds": Thresholds(), "extent": 1.0}
    refused(lambda: plan(**{**arguments, "after_reset": False, **change}), argument)


@pytest.mark.parametrize("name", ["grow_gradient", "clone_size", "split_radius", "prune_opacity", "prune_size"])
@pytest.mark.parametrize("value", [-1.0, float("nan"), "1"])
def test_spoiled_threshold_is_named(name: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=f"^{name}: expected"):
        replace(Thresholds(), **{name: value})


def test_opacity_of_which_all_would_go_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"^prune_opacity: expected a value in \[0, 1\), got 1"):
        Thresholds(prune_opacity=1)
