"""Autograd graphs that are kept, dropped, or differentiated twice, and the forward states behind them."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import pytest
import torch

from lumigrad.client import Client, Cuboid, LumigradError, Obstacle, World
from lumigrad.client.torch import mesh_distance, render_gaussians, render_spheres
from support.workers.client_load import client_fixture
from support.workers.worker import WorkerProcess, worker_fixture

Loss = Callable[[Client | str], tuple[torch.Tensor, torch.Tensor]]
CAMERA = torch.tensor([0.1, -0.05, -4.0, 0.05, -0.1, 0.02, 1.0, 0.8, 0.6, -0.7])
SIZE = {"width": 24, "height": 20}


def of_spheres(client: Client | str) -> tuple[torch.Tensor, torch.Tensor]:
    positions = torch.tensor([[0.0, 0.1, 0.2], [0.3, -0.2, 0.5]], requires_grad=True)
    picture = render_spheres(
        positions, torch.ones(2, 3), torch.full((2,), 0.4), CAMERA, gamma=0.5, max_depth=7.0, client=client, **SIZE
    )
    return picture.color.square().sum(), positions


def of_gaussians(client: Client | str, outputs: tuple[str, ...] = ()) -> tuple[torch.Tensor, torch.Tensor]:
    means = torch.tensor([[0.0, 0.1, 3.0], [0.3, -0.2, 4.0]], requires_grad=True)
    result = render_gaussians(
        means, torch.tensor([[1.0, 0, 0, 0]] * 2), torch.full((2, 3), 0.2), torch.full((2,), 0.7), torch.ones(2, 3),
        torch.eye(4)[None], torch.tensor([[[20.0, 0, 12], [0, 20, 10], [0, 0, 1]]]), outputs=outputs, client=client,
        **SIZE,
    )  # fmt: skip
    loss = result.color.square().sum()
    return (loss if result.means2d is None else loss + result.means2d.square().sum()), means


def of_projected_gaussians(client: Client | str) -> tuple[torch.Tensor, torch.Tensor]:
    return of_gaussians(client, ("means2d",))


def of_distances(client: Client | str) -> tuple[torch.Tensor, torch.Tensor]:
    spheres = torch.tensor([[0.3, 0.4, 0.6, 0.1], [0.7, 0.1, 0.0, 0.1]], requires_grad=True)
    world = World([Obstacle(Cuboid((1.0, 1.0, 1.0)))])
    return mesh_distance(spheres, world, activation_distance=0.5, client=client).cost.square().sum(), spheres


LOSSES: list[Loss] = [of_spheres, of_gaussians, of_projected_gaussians, of_distances]
# Backward calls of each pass, where not 1.
CALLS = {of_projected_gaussians: 2}
process = worker_fixture()


client = client_fixture("process")


class Counts:
    """Counts the worker's calls since the object was made."""

    def __init__(self, process: WorkerProcess) -> None:
        self._process = process
        self._before = self._now()

    def _now(self) -> dict[str, float]:
        metric = self._process.metric
        calls = {
            method: sum(metric("lumigrad_calls_total", method=f"{service}.{method}") for service in services)
            for method, services in {
                "Render": ["RenderService"],
                "Query": ["DistanceService"],
                "Backward": ["RenderService", "DistanceService"],
                "Release": ["RenderService", "DistanceService"],
            }.items()
        }
        found = metric("lumigrad_context_lookups_total", result="found")
        return {**calls, "found": found}

    def __getitem__(self, name: str) -> float:
        return self._now()[name] - self._before[name]


def until_forgotten(process: WorkerProcess) -> None:
    until = time.monotonic() + 60
    while process.metric("lumigrad_contexts"):
        assert time.monotonic() < until, "the worker was not told"
        time.sleep(0.02)


@pytest.mark.parametrize("make", LOSSES)
def test_passes_over_a_kept_graph_share_one_forward_state(process: WorkerProcess, client: Client, make: Loss) -> None:
    counts, passes = Counts(process), 3
    loss, leaf = make(client)
    gradients = [torch.autograd.grad(loss, leaf, retain_graph=True)[0] for _ in range(passes - 1)]
    assert process.metric("lumigrad_contexts") == 1
    gradients += torch.autograd.grad(loss, leaf)
    assert gradients[0].any() and all(torch.equal(gradient, gradients[0]) for gradient in gradients)
    calls = passes * CALLS.get(make, 1)
    assert counts["Render"] + counts["Query"] == 1
    assert counts["Backward"] == counts["found"] == calls, "something was computed again"
    # The last pass, which frees the graph, took the state with it.
    assert process.metric("lumigrad_contexts") == counts["Release"] == 0


@pytest.mark.parametrize("make", LOSSES)
def test_a_graph_that_is_kept_and_dropped_gives_its_state_back(
    process: WorkerProcess, client: Client, make: Loss
) -> None:
    loss, leaf = make(client)
    torch.autograd.grad(loss, leaf, retain_graph=True)
    assert process.metric("lumigrad_contexts") == 1
    del loss
    gc.collect()
    until_forgotten(process)


@pytest.mark.parametrize("make", LOSSES)
def test_second_derivatives_are_refused_in_words_of_ours(client: Client, make: Loss) -> None:
    loss, leaf = make(client)
    (gradient,) = torch.autograd.grad(loss, leaf, create_graph=True)
    expected = torch.autograd.grad(loss, leaf)[0]
    assert torch.equal(gradient, expected)
    with pytest.raises(LumigradError, match=r"^second derivatives are not computed: .* leave create_graph=True out"):
        gradient.sum().backward()
    # The same holds if the upstream gradient does not depend on the leaf.
    output, leaf = make(client)
    (gradient,) = torch.autograd.grad(output * 2.0, leaf, create_graph=True)
    with pytest.raises(LumigradError, match=r"^second derivatives are not computed"):
        torch.autograd.grad(gradient.sum(), leaf)


def test_operators_take_a_target_for_a_client(process: WorkerProcess, client: Client) -> None:
    for make in LOSSES:
        (gradient,), (expected,) = (torch.autograd.grad(*make(given)) for given in (process.target, client))
        assert torch.equal(gradient, expected)
    with pytest.raises(LumigradError, match="client: expected a Client, a target such as"):
        of_spheres(7)
