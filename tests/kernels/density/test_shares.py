"""A Gaussian's shares together look like the Gaussian: equation 9 of 3DGS as MCMC."""

from __future__ import annotations

import math

import pytest
import torch

from lumigrad.kernels.density import Draw, Parameters, relocate
from support.training.density_clouds import gaussians
from support.training.density_relocation import MOST_SHARES, share_of

OPACITIES = (0.01, 0.2, 0.7, 0.99, 0.999999)


def shared(device: torch.device, logits: torch.Tensor, shares: int) -> Parameters:
    """Relocates `shares` - 1 dead Gaussians to the first one, whose shares all of them become."""
    cloud = gaussians(shares, device=device)
    cloud.tensors["opacities"][:] = -20.0
    cloud.tensors["opacities"][0] = logits
    assert relocate(cloud, Draw(1, 1), min_opacity=1e-6).relocated == shares - 1
    return cloud


@pytest.mark.parametrize("shares", [2, 3, 10, 51])
@pytest.mark.parametrize("opacity", OPACITIES)
def test_shares_are_those_of_the_equation(density_device: torch.device, opacity: float, shares: int) -> None:
    logit = torch.logit(torch.tensor(opacity, dtype=torch.float64)).float()
    before = gaussians(shares).tensors["scales"][0].double()
    after = shared(density_device, logit, shares)
    share, factor = share_of(float(torch.sigmoid(logit.double())), shares)
    found = torch.sigmoid(after.tensors["opacities"].cpu().double())
    torch.testing.assert_close(found, torch.full((shares,), share, dtype=torch.float64), rtol=2e-6, atol=0)
    expected = (before + math.log(factor)).expand(shares, 3)
    torch.testing.assert_close(after.tensors["scales"].cpu().double(), expected, rtol=0, atol=1e-6)


def test_more_shares_than_the_sum_bears_are_taken_for_as_many() -> None:
    cpu, logit = torch.device("cpu"), torch.tensor(2.0)
    most, more = shared(cpu, logit, MOST_SHARES), shared(cpu, logit, 400)
    assert torch.equal(most.tensors["opacities"][0], more.tensors["opacities"][0])
    shrunk = [cloud.tensors["scales"][0] - gaussians(cloud.count).tensors["scales"][0] for cloud in (most, more)]
    torch.testing.assert_close(*shrunk, rtol=0, atol=1e-6)


@pytest.mark.parametrize("logit", [20.0, 1e3, 1e30])
@pytest.mark.parametrize("shares", [2, 51])
def test_saturated_opacities_give_finite_shares(density_device: torch.device, logit: float, shares: int) -> None:
    after = shared(density_device, torch.tensor(logit), shares)
    scale = after.tensors["scales"] - gaussians(shares, device=density_device).tensors["scales"][0]
    assert torch.isfinite(after.tensors["opacities"]).all()
    assert ((scale <= 0.0) & (scale > -3.0)).all()
