"""Exposures, depths, alphas, normals and motions of cameras in a step, against float64 and autograd."""

from __future__ import annotations

import pytest
import torch

from lumigrad.kernels.training import (
    ArgumentError,
    alpha_loss,
    apply_exposure,
    apply_pose_update,
    depth_loss,
    exposure_gradient,
    normal_loss,
)
from support.closeness import assert_relative


def made(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 7, 11), (3, 40, 31)])
def test_exposures_are_affine_and_their_gradients_autograd_s(shape: tuple[int, int, int]) -> None:
    image, matrices, upstream = made(*shape, 3), made(shape[0], 3, 4, seed=1), made(*shape, 3, seed=2)
    exact = [tensor.double().requires_grad_() for tensor in (image, matrices)]
    exposed = torch.einsum("chwk,cjk->chwj", exact[0], exact[1][:, :, :3]) + exact[1][:, None, None, :, 3]
    assert_relative("exposed", apply_exposure(image, matrices), exposed.detach(), 1e-6)
    expected = torch.autograd.grad(exposed, exact, upstream.double())
    for name, found, wanted in zip(
        ("image", "matrices"), exposure_gradient(image, matrices, upstream), expected, strict=True
    ):
        assert_relative(name, found, wanted, 1e-6)


def test_the_identity_exposes_nothing() -> None:
    image = made(2, 5, 4, 3)
    assert torch.equal(apply_exposure(image, torch.eye(3, 4).expand(2, 3, 4).contiguous()), image)


def test_depths_that_are_unknown_do_not_count() -> None:
    depth, target = made(2, 6, 5).abs() + 1, made(2, 6, 5, seed=1).abs() + 1
    target[0, 0, 0], target[0, 1, 1], target[1, 2, 3], target[1, 0, 0] = 0.0, float("nan"), float("inf"), -1.0
    known = target.isfinite() & (target > 0)
    exact = depth.double().requires_grad_()
    value = (exact - target.double())[known].abs().mean()
    (expected,) = torch.autograd.grad(value, exact)
    found = depth_loss(depth, target)
    assert found.value == pytest.approx(float(value), rel=1e-6)
    assert_relative("gradient", found.gradient, expected, 1e-6)
    nothing = depth_loss(depth, torch.zeros_like(depth))
    assert nothing.value == 0.0 and not nothing.gradient.any()


def test_alphas_are_compared_everywhere() -> None:
    alpha, target = made(1, 8, 9).sigmoid(), made(1, 8, 9, seed=1).sigmoid()
    exact = alpha.double().requires_grad_()
    value = (exact - target.double()).abs().mean()
    (expected,) = torch.autograd.grad(value, exact)
    found = alpha_loss(alpha, target)
    assert found.value == pytest.approx(float(value), rel=1e-6)
    assert_relative("gradient", found.gradient, expected, 1e-6)


@pytest.mark.parametrize("size", [0.0, 1e-9, 1e-5, 1e-4, 0.3, 3.0, 40.0])
def test_motions_are_the_exponential_of_se3(size: float) -> None:
    xi = size * made(4, 6).double()
    generators = torch.zeros(4, 4, 4, dtype=torch.float64)
    generators[:, 0, 1], generators[:, 0, 2], generators[:, 1, 2] = -xi[:, 5], xi[:, 4], -xi[:, 3]
    generators -= generators.transpose(1, 2).clone()
    generators[:, :3, 3] = xi[:, :3]
    poses = torch.linalg.matrix_exp(0.5 * generators)
    expected = torch.linalg.matrix_exp(generators) @ poses
    torch.testing.assert_close(apply_pose_update(poses, xi), expected, rtol=1e-9, atol=1e-11 * max(1.0, size))


def test_arguments_that_do_not_fit_are_named() -> None:
    with pytest.raises(ArgumentError, match="image"):
        apply_exposure(made(2, 5, 4, 4), made(2, 3, 4))
    with pytest.raises(ArgumentError, match="matrices"):
        apply_exposure(made(2, 5, 4, 3), made(1, 3, 4))
    with pytest.raises(ArgumentError, match="gradient"):
        exposure_gradient(made(2, 5, 4, 3), made(2, 3, 4), made(2, 5, 3, 3))
    with pytest.raises(ArgumentError, match="target"):
        depth_loss(made(2, 5, 4), made(2, 5, 3))
    with pytest.raises(ArgumentError, match="alpha"):
        alpha_loss(made(5, 4), made(5, 4))
    with pytest.raises(ArgumentError, match="xi"):
        apply_pose_update(torch.eye(4, dtype=torch.float64)[None], torch.zeros(2, 6, dtype=torch.float64))


def test_normals_are_consistent_where_there_is_a_surface() -> None:
    alpha, normals, surface = made(2, 5, 6).sigmoid(), made(2, 5, 6, 3, seed=1), made(2, 5, 6, 3, seed=2)
    surface = torch.nn.functional.normalize(surface, dim=-1)
    surface[:, 0] = 0.0
    exact = [tensor.double().requires_grad_() for tensor in (alpha, normals, surface)]
    value = (exact[0] - (exact[1] * exact[2]).sum(-1))[:, 1:].sum() / alpha.numel()
    expected = torch.autograd.grad(value, exact)
    found = normal_loss(alpha, normals, surface)
    assert found.value == pytest.approx(float(value), rel=1e-6)
    for (name, gradient), wanted in zip(found.gradients.items(), expected, strict=True):
        assert_relative(name, gradient, wanted, 1e-6)


def test_normals_of_other_shapes_are_refused() -> None:
    with pytest.raises(ArgumentError, match="surface_normals"):
        normal_loss(made(1, 4, 4), made(1, 4, 4, 3), made(1, 4, 5, 3))
