"""Steps of Adam without a gradient, made up for at once, equal the same steps one by one."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch

from lumigrad.server.training.idle_steps import make_up
from lumigrad.server.training.parameters import Optimizer, Parameters, Rate

COUNT = 300
RATES: Mapping[str, Rate] = {
    "means": Rate(1e-2, 1e-4, 60),
    "scales": Rate(5e-3, 0.0, 0),
    "opacities": Rate(5e-2, 0.0, 0),
    "sh0": Rate(2e-3, 1e-3, 500),
    "sh_rest": Rate(1e-4, 0.0, 0),
}
OPTIMIZERS = {
    "default": Optimizer(RATES, (0.9, 0.999), 1e-15, False),
    "epsilon": Optimizer(RATES, (0.9, 0.999), 1e-8, False),
    "slow": Optimizer(RATES, (0.99, 0.9), 1e-15, False),
    "quick": Optimizer({"means": RATES["means"], "sh_rest": RATES["sh_rest"]}, (0.0, 0.99), 1e-15, False),
}


def stepped(optimizer: Optimizer) -> Parameters:
    """Returns parameters after three steps with random gradients."""
    generator = torch.Generator().manual_seed(0)
    widths = {"means": (3,), "quats": (4,), "scales": (3,), "opacities": (), "sh": (4, 3)}
    tensors = {name: torch.rand(COUNT, *width, generator=generator) * 0.8 + 0.1 for name, width in widths.items()}
    parameters = Parameters.of_scene(tensors, optimizer)
    for step in range(3):
        gradients = {name: torch.randn(tensor.shape, generator=generator) for name, tensor in tensors.items()}
        parameters.prepared_step(gradients, None, optimizer, step, None).run()
    return parameters


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_made_up_for_at_once_are_those_made_one_by_one(name: str) -> None:
    optimizer, until = OPTIMIZERS[name], 120
    found, expected = stepped(optimizer), stepped(optimizer)
    zeros = {name: torch.zeros_like(value) for name, value in expected.values.items()}
    since = np.full(COUNT, 3)
    since[100:200], since[200:] = 90, until
    for step in range(3, until):
        rows = torch.from_numpy(since <= step)
        expected.prepared_step(zeros, None, optimizer, step, rows).run()
    before = found.copied()
    make_up(found, since, until, optimizer)
    for part, tensor in expected.tensors.items():
        moved = float((tensor - before.tensors[part]).abs().max())
        assert float((found.tensors[part] - tensor).abs().max()) <= 2e-4 * moved + 1e-6, part
        assert torch.equal(found.tensors[part][200:], before.tensors[part][200:])


def test_making_up_twice_is_making_up_once() -> None:
    optimizer = OPTIMIZERS["default"]
    once, twice = stepped(optimizer), stepped(optimizer)
    make_up(once, np.full(COUNT, 3), 50, optimizer)
    make_up(twice, np.full(COUNT, 3), 20, optimizer)
    make_up(twice, np.full(COUNT, 20), 50, optimizer)
    for part, tensor in once.tensors.items():
        assert float((twice.tensors[part] - tensor).abs().max()) <= 1e-6, part
