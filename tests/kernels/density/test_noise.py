"""Noise on the means of Gaussians: the formula, what it leaves alone, and that it can be repeated."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lumigrad.kernels import ArgumentError, _native
from lumigrad.kernels.density import STREAMS, Draw, Parameters, add_noise
from support.refusals import refused
from support.training import density_random, density_reference
from support.training.density_clouds import copy_of, gaussians, spheres

DRAW = Draw(seed=5, step=700)
STREAM = STREAMS.index("noise")


def noisy(parameters: Parameters, draw: Draw = DRAW, rate: float = 1.6e-4) -> torch.Tensor:
    changed = copy_of(parameters)
    add_noise(changed, draw, learning_rate=rate)
    return changed.tensors["means"].cpu()


@pytest.mark.parametrize("count", [0, 1, 15, 16, 33, 3000])
def test_means_move_by_the_formula(density_device: torch.device, count: int) -> None:
    cloud = gaussians(count, device=density_device)
    tensors = {name: tensor.cpu() for name, tensor in cloud.tensors.items()}
    normals = density_random.normals(DRAW.seed, DRAW.step, STREAM, np.arange(count))[:, :3]
    expected = density_reference.noisy_means(tensors, torch.from_numpy(normals), 80.0)
    # The second term allows for the rounding of the means themselves.
    offset = (expected - tensors["means"]).abs()
    assert ((noisy(cloud).double() - expected).abs() <= 6e-6 * offset + 3e-7 * tensors["means"].abs() + 1e-9).all()


def test_only_means_change(density_device: torch.device) -> None:
    cloud = gaussians(100, device=density_device)
    changed = copy_of(cloud)
    times = add_noise(changed, DRAW, learning_rate=1e-3)
    for name, tensor in cloud.tensors.items():
        assert torch.equal(tensor, changed.tensors[name]) == (name != "means")
    for name, moments in cloud.moments.items():
        assert all(torch.equal(a, b) for a, b in zip(moments, changed.moments[name], strict=True))
    assert list(times.milliseconds()) in (["add_noise"], [])


def test_parameters_that_require_gradients_move_too() -> None:
    cloud = gaussians(10)
    cloud.tensors["means"].requires_grad_()
    before = cloud.tensors["means"].detach().clone()
    add_noise(cloud, DRAW, learning_rate=1.0)
    assert cloud.tensors["means"].requires_grad and not torch.equal(cloud.tensors["means"], before)


def test_extreme_values_stay_finite(density_device: torch.device) -> None:
    cloud = gaussians(48, device=density_device)
    cloud.tensors["opacities"][:16] = torch.tensor([-1e30, 1e30] * 8)
    cloud.tensors["scales"][8:24] = -200.0
    cloud.tensors["quats"][16:32] = 0.0
    cloud.tensors["quats"][32:48] *= 1e-15
    assert torch.isfinite(noisy(cloud)).all()


def test_same_draw_gives_the_same_bits(density_device: torch.device, keep_threads: None) -> None:
    cloud = gaussians(5000, device=density_device)
    expected = noisy(cloud)
    for threads in (1, 2, 3):
        _native.set_thread_count(threads)
        assert torch.equal(noisy(cloud), expected)


def test_spoiled_arguments_are_named() -> None:
    cloud = gaussians(3)
    for argument, call in {
        "parameters": lambda: add_noise(cloud.tensors, DRAW, learning_rate=1.0),  # type: ignore[arg-type]
        "draw": lambda: add_noise(cloud, 3, learning_rate=1.0),  # type: ignore[arg-type]
        "learning_rate": lambda: add_noise(cloud, DRAW, learning_rate=-1.0),
        "noise_rate": lambda: add_noise(cloud, DRAW, learning_rate=1.0, noise_rate=float("nan")),
    }.items():
        refused(call, argument)
    with pytest.raises(ArgumentError, match=r"^parameters: expected Gaussians.*got spheres$"):
        add_noise(spheres(3), DRAW, learning_rate=1.0)
