"""Gradients through merges agree with a reference in float64 and with finite differences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from lumigrad.client.base.timings import Gradients, Timings
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.formats.levels import leaf_gradients
from lumigrad.client.formats.levels.merge_gradients import NAMES, through_merge
from lumigrad.client.formats.levels.merging import DEPTHS, MASSES, THOMSEN, merged
from lumigrad.client.formats.scene import StoredScene

STARTS = np.array([0, 4, 8, 9, 11])
COUNT = 15
Tensors = Mapping[str, torch.Tensor]


def parts(seed: int, *, opaque: bool) -> StoredScene:
    """Fifteen Gaussians; opaque ones merge to flat tops."""
    generator = np.random.default_rng(seed)
    opacities = generator.uniform(0.85, 0.99, COUNT) if opaque else generator.uniform(0.05, 0.4, COUNT)
    tensors = {
        "means": generator.normal(size=(COUNT, 3)) * (0.05 if opaque else 0.5) + 2.0,
        "quats": generator.normal(size=(COUNT, 4)),
        "scales": np.exp(generator.uniform(-2.5, -0.5, (COUNT, 3))),
        "opacities": opacities,
        "sh": generator.normal(size=(COUNT, 4, 3)),
    }
    return StoredScene(**{name: value.astype(np.float32) for name, value in tensors.items()})


def covariances(quats: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    w, x, y, z = (quats / quats.norm(dim=1, keepdim=True)).unbind(1)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    axes = torch.stack([torch.stack(row, 1) for row in rows], 1) * scales[:, None]
    return axes @ axes.mT


def areas(scales: torch.Tensor) -> torch.Tensor:
    return torch.pi * ((scales * scales.roll(1, 1)) ** THOMSEN).mean(1) ** (1 / THOMSEN)


def interpolated(values: torch.Tensor, places: np.ndarray, heights: np.ndarray) -> torch.Tensor:
    x, y = torch.from_numpy(places), torch.from_numpy(heights)
    after = torch.searchsorted(x, values.detach(), right=True).clamp(1, len(x) - 1)
    share = (values - x[after - 1]) / (x[after] - x[after - 1])
    return y[after - 1] + share * (y[after] - y[after - 1])


def reference(tensors: Tensors) -> tuple[torch.Tensor, ...]:
    """Means, covariances, opacities and harmonics of the merged Gaussians, in float64."""
    found = []
    for start, end in zip(STARTS, [*STARTS[1:], COUNT], strict=True):
        means, quats, scales, opacities, sh = (tensors[name][start:end] for name in NAMES)
        if end - start == 1:
            found.append((means[0], covariances(quats, scales)[0], opacities[0], sh[0]))
            continue
        shares = opacities * areas(scales) / (opacities * areas(scales)).sum()
        mean = (shares[:, None] * means).sum(0)
        away = means - mean
        moments = covariances(quats, scales) + away[:, :, None] * away[:, None, :]
        covariance = (shares[:, None, None] * moments).sum(0)
        depths = (interpolated(opacities, MASSES, DEPTHS) * areas(scales)).sum()
        depth = depths / areas(torch.linalg.eigvalsh(covariance).sqrt()[None])[0]
        opacity = -torch.expm1(-depth)
        wide = (interpolated(depth, DEPTHS, MASSES) / opacity).clamp_min(1.0).sqrt()
        found.append((mean, wide * covariance, opacity, (shares[:, None, None] * sh).sum(0)))
    return tuple(map(torch.stack, zip(*found, strict=True)))


def doubled(scene: StoredScene) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(getattr(scene, name)).double() for name in NAMES}


@pytest.mark.parametrize("opaque", [False, True])
def test_gradients_through_a_merge_are_those_of_the_reference_and_finite_differences(opaque: bool) -> None:
    scene = parts(1, opaque=opaque)
    drawn, _ = merged(scene, STARTS, np.zeros(COUNT))
    expected = reference(doubled(scene))
    own = doubled(drawn)
    for one, other in zip(
        (own["means"], covariances(own["quats"], own["scales"]), own["opacities"]), expected[:3], strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert bool((expected[2] > 0.9).any()) == opaque
    generator = torch.Generator().manual_seed(2)
    weights = [torch.randn(tensor.shape, generator=generator, dtype=torch.float64) for tensor in expected]

    def loss(tensors: Tensors) -> torch.Tensor:
        return sum(
            ((weight * tensor).sum() for weight, tensor in zip(weights, reference(tensors), strict=True)),
            torch.zeros(()),
        )

    # A renderer returns the gradients of the quaternions and scales that it draws.
    for tensor in own.values():
        tensor.requires_grad_()
    shown = own["means"], covariances(own["quats"], own["scales"]), own["opacities"], own["sh"]
    torch.autograd.backward([*shown], weights)
    upstream = {name: tensor.grad.numpy() for name, tensor in own.items() if tensor.grad is not None}
    found = through_merge(
        {name: tensor.numpy() for name, tensor in doubled(scene).items()},
        {name: tensor.detach().numpy() for name, tensor in own.items()},
        STARTS,
        upstream,
    )
    leaves = {name: tensor.requires_grad_() for name, tensor in doubled(scene).items()}
    torch.autograd.backward(loss(leaves))
    for name, tensor in leaves.items():
        assert tensor.grad is not None
        expected_gradient = tensor.grad.numpy()
        # The drawn values are float32.
        atol = 2e-5 * float(np.abs(expected_gradient).max())
        np.testing.assert_allclose(found[name], expected_gradient, rtol=0, atol=atol, err_msg=name)
        direction = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        ends = [loss({**leaves, name: tensor.detach() + sign * 1e-6 * direction}) for sign in (1.0, -1.0)]
        along = float((ends[0] - ends[1]).detach() / 2e-6)
        assert float((found[name] * direction.numpy()).sum()) == pytest.approx(along, rel=1e-4, abs=10 * atol), name


def test_levels_that_are_no_merges_of_each_other_are_refused() -> None:
    fine, starts = parts(3, opaque=False), np.arange(0, COUNT, 4)
    coarse = merged(fine, starts, np.zeros(COUNT))[0]
    upstream = {name: np.ones_like(getattr(coarse, name)) for name in NAMES}
    gradients = Gradients({"index": np.arange(COUNT, COUNT + len(starts)), **upstream}, Timings())

    def levels_of(above: StoredScene) -> Any:
        counts = np.array([[COUNT, len(starts)]])
        return SimpleNamespace(counts=counts, levels=2, read=lambda _, level: (fine, above)[level])

    assert len(leaf_gradients(levels_of(coarse), gradients).index) == COUNT
    # A program that thins a scene out may keep as many Gaussians, at other places.
    thinned = replace(coarse, means=coarse.means + np.float32(20))
    with pytest.raises(InvalidArgument, match=r"levels: .* got 4 Gaussians of page 0 far from their parts"):
        leaf_gradients(levels_of(thinned), gradients)
