"""cuRobo's functions on a worker against double precision: values, gradients, and what callers' buffers hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from support.calls.curobo_calls import ABSENT, files, oracle_term


@pytest.mark.skipif(not files(), reason=ABSENT)
@pytest.mark.parametrize("path", files(), ids=lambda path: path.stem)
@pytest.mark.parametrize("calls", [1, 2], ids=["fresh", "used"])
def test_costs_and_gradients(path: Path, calls: int):
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files}
    term = oracle_term(arrays)
    for _ in range(calls):
        spheres = torch.from_numpy(arrays["spheres"].copy()).requires_grad_()
        cost = term(spheres)
        cost.sum().backward()
    weight, expected = float(arrays["weight"]), arrays["ref_cost"]
    tolerance = 1e-5 * weight + 1e-4 * np.abs(expected).max()
    wrong = arrays["ref_ok_cost"] & ~(np.abs(cost.detach().numpy() - expected) <= tolerance)
    assert not wrong.any(), np.argwhere(wrong)
    difference = np.abs(spheres.grad.numpy() - arrays["ref_grad"]).max(axis=-1)
    # Rounding may exceed the tiny gradient of a case that hardly touches, so the tolerance has a floor.
    scale = max(np.abs(arrays["ref_grad"]).max(), 1e-2 * weight)
    wrong = arrays["ref_ok_grad"] & ~(difference <= 2e-3 * scale)
    assert not wrong.any(), np.argwhere(wrong)
    buffer, gradient, sparsity = term.buffers_for(spheres)
    assert cost.data_ptr() == buffer.data_ptr()
    assert torch.equal(gradient, spheres.grad)
    assert torch.equal(sparsity != 0, buffer != 0)
