"""Programs for gsplat that step scales through 0 or pass defaults by name."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, IntEnum
from typing import Any

import pytest
import torch

from lumigrad.client.compat.gsplat import GsplatArgumentError, rasterization
from support.workers.worker import WorkerProcess

SIZE = 32
Rasterize = Callable[..., tuple[torch.Tensor, torch.Tensor, dict[str, Any]]]


@pytest.fixture
def rasterize(worker_process: WorkerProcess) -> Rasterize:
    camera = torch.tensor([[[30.0, 0.0, SIZE / 2], [0.0, 30.0, SIZE / 2], [0.0, 0.0, 1.0]]])
    view = torch.eye(4)
    view[2, 3] = 4.0

    def call(tensors: dict[str, torch.Tensor], **options: Any) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
        options.setdefault("target", worker_process.target)
        return rasterization(**tensors, viewmats=view[None], Ks=camera, width=SIZE, height=SIZE, **options)

    return call


def cloud(count: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    uniform = lambda *shape: torch.rand(*shape, generator=generator)  # noqa: E731
    tensors = {
        "means": 3.0 * uniform(count, 3) - 1.5,
        "quats": uniform(count, 4) - 0.5,
        "scales": 0.3 * uniform(count, 3),
        "opacities": 0.3 + 0.6 * uniform(count),
        "colors": uniform(count, 3),
    }
    return {name: tensor.requires_grad_() for name, tensor in tensors.items()}


@pytest.mark.parametrize("sparse", [False, True])
def test_scales_count_by_their_absolute_values(rasterize: Rasterize, sparse: bool) -> None:
    signs = torch.where(torch.rand(20, 3, generator=torch.Generator().manual_seed(1)) < 0.5, -1.0, 1.0)
    positive, mixed = cloud(20), cloud(20)
    mixed["scales"] = (mixed["scales"].detach() * signs).requires_grad_()
    images = []
    for tensors in (positive, mixed):
        image, _, _ = rasterize(tensors, packed=sparse, sparse_grad=sparse)
        image.square().sum().backward()
        images.append(image.detach())
    assert torch.equal(*images)
    for name, tensor in positive.items():
        one, other = tensor.grad, mixed[name].grad
        assert one is not None and other is not None and one.is_sparse == other.is_sparse
        factor = signs if name == "scales" else 1.0
        assert one.to_dense().abs().max() > 0
        torch.testing.assert_close(other.to_dense() * factor, one.to_dense(), msg=name)


class Named(Enum):
    GLOBAL = 7
    ROLLING_TOP_TO_BOTTOM = 4


class Numbered(IntEnum):
    ROLLING_TOP_TO_BOTTOM = 0
    GLOBAL = 4


class RendererConfig_MixedBatch:
    """Named like gsplat's default renderer."""


@pytest.mark.parametrize(
    "options",
    [
        {"rolling_shutter": Named.GLOBAL},
        {"rolling_shutter": Numbered.GLOBAL},
        {"rolling_shutter": 4},
        {"renderer_config": RendererConfig_MixedBatch()},
    ],
    ids=lambda options: "-".join(f"{name}={type(value).__name__}" for name, value in options.items()),
)
def test_defaults_of_gsplat_may_be_named(rasterize: Rasterize, options: dict[str, Any]) -> None:
    assert torch.equal(rasterize(cloud(5), **options)[0], rasterize(cloud(5))[0])


@pytest.mark.parametrize("shutter", [Named.ROLLING_TOP_TO_BOTTOM, Numbered.ROLLING_TOP_TO_BOTTOM])
def test_shutters_of_gsplat_roll_with_sigma_points(rasterize: Rasterize, shutter: Any) -> None:
    with pytest.raises(GsplatArgumentError, match=r"^rolling_shutter: expected GLOBAL without with_ut=True"):
        rasterize(cloud(5), rolling_shutter=shutter)
    with pytest.raises(GsplatArgumentError, match=r"^viewmats_rs: expected poses with the shutter top_to_bottom"):
        rasterize(cloud(5), rolling_shutter=shutter, with_ut=True, packed=False)
