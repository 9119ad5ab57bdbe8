"""Hooks on the results of PyTorch's operators."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from lumigrad.client.compat import gsplat
from lumigrad.client.torch import render_gaussians
from support.torch_scene import SIZE, scene

pytestmark = pytest.mark.usefixtures("target")


@pytest.mark.parametrize("packed", [None, False, True])
def test_hooks_may_change_the_gradient_of_the_centres_in_place(packed: bool | None):
    weights = torch.rand(1, 12, 16, 3, generator=torch.Generator().manual_seed(1))

    def slopes(hook: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        means = scene()["means"].requires_grad_()
        if packed is None:
            result = render_gaussians(**{**scene(), "means": means}, **SIZE, outputs="means2d")
            color, centres = result.color, result.means2d
        else:
            color, _, meta = gsplat.rasterization(**{**scene(), "means": means}, **SIZE, packed=packed)
            centres = meta["means2d"]
        centres.register_hook(hook)
        return torch.autograd.grad((color * weights).sum(), means)[0]

    torch.testing.assert_close(slopes(lambda slope: slope.mul_(3)), slopes(lambda slope: slope * 3))
