"""Hooks on the results of PyTorch's operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from lumigrad.client.compat import gsplat
from lumigrad.client.torch import render_gaussians
from support.workers.worker import WorkerProcess

COUNT, SIZE = 12, {"width": 16, "height": 12}


@pytest.fixture(autouse=True)
def target(worker_process: WorkerProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("LUMIGRAD_TARGET", worker_process.target)
    yield


def scene() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "means": torch.randn(COUNT, 3, generator=generator) + torch.tensor([0, 0, 5.0]),
        "quats": torch.randn(COUNT, 4, generator=generator),
        "scales": torch.full((COUNT, 3), 0.3),
        "opacities": torch.full((COUNT,), 0.5),
        "colors": torch.rand(COUNT, 3, generator=generator),
        "viewmats": torch.eye(4)[None],
        "Ks": torch.tensor([[[20.0, 0, 8], [0, 20, 6], [0, 0, 1]]]),
    }


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
