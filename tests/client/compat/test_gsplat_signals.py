"""Extra signals besides colours, and gsplat's wrapper of the rasterizer of the 3DGS paper, on a worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from lumigrad.client.compat.gsplat import (
    GsplatArgumentError,
    RollingShutterType,
    rasterization,
    rasterization_inria_wrapper,
)
from lumigrad.client.torch import render_gaussians
from support.gaussians.colors import harmonics
from support.gaussians.splats import COUNT, HEIGHT, WIDTH, splats
from support.workers.worker import WorkerProcess

Results = tuple[torch.Tensor, torch.Tensor, dict[str, Any]]


def scene(*batch: int) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in splats(*batch).items() if name != "colors"}


@pytest.fixture
def rasterize(worker_process: WorkerProcess) -> Callable[..., Results]:
    def call(tensors: dict[str, torch.Tensor], colors: torch.Tensor | None, **options: Any) -> Results:
        size = {"width": WIDTH, "height": HEIGHT, "target": worker_process.target}
        return rasterization(**tensors, colors=colors, **size, **options)

    return call


def signal_of(coefficients: torch.Tensor, tensors: dict[str, torch.Tensor], degree: int) -> torch.Tensor:
    """Signals [C, N, E] by formulas other than the client's."""
    values = []
    for view in tensors["viewmats"]:
        eye = -view[:3, :3].T @ view[:3, 3]
        basis = harmonics(degree, torch.nn.functional.normalize(tensors["means"] - eye, dim=-1))
        values.append(0.5 + (basis[..., None] * coefficients[:, : basis.shape[-1]]).sum(-2))
    return torch.stack(values)


@pytest.mark.parametrize("mode", ["RGB", "RGB+ED", "D"])
@pytest.mark.parametrize("batch", [(), (2,)], ids=str)
def test_signals_are_blended_like_colors(batch: tuple[int, ...], mode: str, rasterize: Callable[..., Results]) -> None:
    tensors = scene(*batch)
    colors = torch.rand(*batch, COUNT, 3)
    background = {"backgrounds": torch.rand(*batch, 2, 3)}
    for signals in (torch.randn(*batch, COUNT, 2), torch.randn(*batch, 2, COUNT, 2)):
        image, alpha, meta = rasterize(tensors, colors, extra_signals=signals, render_mode=mode, **background)
        plain, plain_alpha, _ = rasterize(tensors, colors, render_mode=mode, **background)
        alone, _, _ = rasterize(tensors, signals)
        assert list(meta)[-1] == "render_extra_signals"
        assert meta["render_extra_signals"].shape == (*batch, 2, HEIGHT, WIDTH, 2)
        torch.testing.assert_close(image, plain)
        torch.testing.assert_close(alpha, plain_alpha)
        torch.testing.assert_close(meta["render_extra_signals"], alone)
        assert alone.min() < -0.1


def test_signals_have_a_background_if_it_has_channels_for_them(rasterize: Callable[..., Results]) -> None:
    tensors, colors, signals = scene(), torch.rand(COUNT, 3), torch.rand(COUNT, 2)
    background = torch.rand(2, 5)
    image, alpha, meta = rasterize(tensors, colors, extra_signals=signals, backgrounds=background)
    plain, _, meta_plain = rasterize(tensors, colors, extra_signals=signals)
    clear = 1 - alpha
    torch.testing.assert_close(image, plain + clear * background[:, None, None, :3])
    expected = meta_plain["render_extra_signals"] + clear * background[:, None, None, 3:]
    torch.testing.assert_close(meta["render_extra_signals"], expected)


@pytest.mark.parametrize("of_colors", [None, 2])
@pytest.mark.parametrize("of_signals", [None, 1, 3])
def test_harmonics_of_signals_may_be_negative_and_have_gradients(
    of_colors: int | None, of_signals: int | None, rasterize: Callable[..., Results]
) -> None:
    generator = torch.Generator().manual_seed(9)
    tensors = scene()
    colors = torch.rand(COUNT, *(() if of_colors is None else (9,)), 3, generator=generator).sub_(0.4).requires_grad_()
    signals = torch.randn(COUNT, *(() if of_signals is None else (16,)), 2, generator=generator).requires_grad_()
    upstream = torch.rand(2, HEIGHT, WIDTH, 5, generator=generator)
    image, _, meta = rasterize(
        tensors, colors, sh_degree=of_colors, extra_signals=signals, extra_signals_sh_degree=of_signals
    )
    (torch.cat([image, meta["render_extra_signals"]], -1) * upstream).sum().backward()
    names = ("means", "quats", "scales", "opacities", "viewmats")
    found = {name: tensors[name].grad for name in names} | {"colors": colors.grad, "signals": signals.grad}
    for tensor in (*tensors.values(), colors, signals):
        tensor.grad = None

    # Colours as the worker computes them, and signals by a call of their own.
    plain, _, _ = rasterize(tensors, colors, sh_degree=of_colors)
    alone, _, _ = rasterize(tensors, signals if of_signals is None else signal_of(signals, tensors, of_signals))
    assert alone.min() < -0.1
    torch.testing.assert_close(image, plain, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(meta["render_extra_signals"], alone, rtol=1e-5, atol=1e-5)
    (torch.cat([plain, alone], -1) * upstream).sum().backward()
    expected = {name: tensors[name].grad for name in names} | {"colors": colors.grad, "signals": signals.grad}
    for name, gradient in expected.items():
        assert gradient is not None and found[name] is not None, name
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-4 * float(gradient.abs().max()), msg=name)


def test_the_gradient_of_the_centres_is_that_of_colors_and_signals(rasterize: Callable[..., Results]) -> None:
    tensors, colors, signals = scene(), torch.rand(COUNT, 3), torch.rand(COUNT, 2)
    gradients = []
    for both in (True, False):
        if both:
            image, _, meta = rasterize(tensors, colors, extra_signals=signals, packed=False)
            image = torch.cat([image, meta["render_extra_signals"]], -1)
        else:
            image, _, meta = rasterize(tensors, torch.cat([colors, signals], -1), packed=False)
        meta["means2d"].retain_grad()
        image.square().sum().backward()
        gradients.append(meta["means2d"].grad)
    torch.testing.assert_close(*gradients)


def test_signals_are_blended_along_the_rays_of_moving_cameras(rasterize: Callable[..., Results]) -> None:
    tensors = scene()
    ends = tensors["viewmats"].detach().clone()
    ends[:, 0, 3] += 0.3
    signals = torch.randn(COUNT, 4, 2, generator=torch.Generator().manual_seed(1)).requires_grad_()
    options: dict[str, Any] = {"with_ut": True, "with_eval3d": True, "packed": False, "viewmats_rs": ends}
    options |= {"rolling_shutter": RollingShutterType.ROLLING_TOP_TO_BOTTOM}
    options |= {"render_mode": "RGB-Ed", "return_normals": True}
    colors = torch.rand(COUNT, 3)
    image, _, meta = rasterize(tensors, colors, extra_signals=signals, extra_signals_sh_degree=1, **options)
    plain, _, plain_meta = rasterize(tensors, colors, **options)
    torch.testing.assert_close(image, plain)
    torch.testing.assert_close(meta["normals"], plain_meta["normals"])
    between = {**tensors, "viewmats": 0.5 * (tensors["viewmats"] + ends)}
    alone, _, _ = rasterize(tensors, signal_of(signals, between, 1), **{**options, "render_mode": "RGB"})
    torch.testing.assert_close(meta["render_extra_signals"], alone, rtol=1e-5, atol=1e-5)
    meta["render_extra_signals"].sum().backward()
    assert signals.grad is not None and signals.grad.abs().max() > 0


@pytest.mark.parametrize("degree", [None, 1])
@pytest.mark.parametrize("batch", [(), (2,)], ids=str)
def test_the_wrapper_of_the_paper_s_rasterizer_draws_its_pictures(
    batch: tuple[int, ...], degree: int | None, worker_process: WorkerProcess
) -> None:
    tensors = scene(*batch)
    colors = torch.rand(COUNT, 4, 5) - 0.2 if degree is not None else torch.rand(*batch, COUNT, 5)
    colors.requires_grad_()
    given = {**tensors, "Ks": tensors["Ks"] + torch.tensor([[0.0, 0, 3], [0, 0, -2], [0, 0, 0]])}
    options: dict[str, Any] = {"colors": colors, "width": WIDTH, "height": HEIGHT, "sh_degree": degree}
    background, target = torch.ones(*batch, 2, 5), worker_process.target
    drawn = rasterization_inria_wrapper(**given, **options, backgrounds=background, target=target, packed=True)
    image, alpha, meta = drawn
    assert image.shape == (*batch, 2, HEIGHT, WIDTH, 5) and alpha is None and meta == {}
    unit = {**tensors, "quats": torch.nn.functional.normalize(tensors["quats"], dim=-1)}
    expected = render_gaussians(
        **unit, **options, near=0.2, background=background, semantics="inria_depth", client=target
    )
    assert torch.equal(image, expected.color)
    image.square().sum().backward()
    assert all(tensors[name].grad.abs().max() > 0 for name in ("means", "quats", "scales", "opacities"))


def test_another_blur_than_the_paper_s_is_refused() -> None:
    tensors = scene()
    with pytest.raises(
        GsplatArgumentError, match=r"^eps2d: expected 0.3, which the rasterizer of the paper has, got 0"
    ):
        rasterization_inria_wrapper(**tensors, colors=torch.rand(COUNT, 3), width=8, height=8, eps2d=0.0)
