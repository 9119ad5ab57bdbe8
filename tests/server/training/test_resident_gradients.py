"""Gradients of steps without Python are those of float64 and autograd, for each term of the loss."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lumigrad.server.training.state import TrainingState
from lumigrad.v1 import training_pb2
from support.calls.raw_training import RATES
from support.gaussians.case import Options
from support.gaussians.projection import Camera
from support.gaussians.reference import Frame, Part, render
from support.training.losses import similarity
from support.training.resident import maker_of
from support.training.states import SIZE, state_of

VIEWS = [2, 0]
LOSSES: dict[str, tuple[dict[str, float], tuple[str, ...]]] = {
    "l1": ({"l1": 1.0}, ()),
    "l2": ({"l2": 1.0}, ()),
    "dssim": ({"dssim": 1.0}, ()),
    "masked": ({"l1": 0.3, "l2": 0.4, "dssim": 0.3}, ("mask",)),
    "depth": ({"depth": 1.0}, ("depth",)),
    "alpha": ({"alpha": 1.0}, ("mask",)),
    "opacity": ({"l2": 1.0, "opacity": 0.5}, ()),
    "scale": ({"l2": 1.0, "scale": 0.5}, ()),
    "all": (dict.fromkeys(("l1", "l2", "dssim", "depth", "alpha", "opacity", "scale"), 0.2), ("mask", "depth")),
}


def frame_of(state: TrainingState, number: int, values: dict[str, Tensor]) -> Frame:
    """Renders a view of the scene in float64."""
    camera = state.views.messages[number].camera.opencv
    rotation, translation = (
        torch.tensor(list(part), dtype=torch.float64) for part in (camera.rotation, camera.translation)
    )
    rotation = rotation.reshape(3, 3)
    intrinsics = torch.tensor([camera.fx, camera.fy, camera.cx, camera.cy], dtype=torch.float64)
    seen = Camera(rotation, translation, intrinsics, "pinhole", (), *SIZE, -rotation.T @ translation)
    return render([Part(seen, **values)], torch.zeros(3, dtype=torch.float64), Options())


def mean(values: Tensor, weights: Tensor) -> Tensor:
    """Returns the mean of [H, W, K] with weights [H, W]."""
    return (values * weights[..., None]).sum() / (weights.sum() * values.shape[-1])


def loss_of(state: TrainingState, raw: dict[str, Tensor], matrices: Tensor, weights: dict[str, float]) -> Tensor:
    """Returns the loss of a step in float64."""
    values = {**raw, "scales": raw["scales"].exp(), "opacities": raw["opacities"].sigmoid()}
    frames = [frame_of(state, number, values) for number in VIEWS]
    targets = [{n: t.double() for n, t in state.views.tensors(number).items()} for number in VIEWS]
    ones = torch.ones(SIZE[1], SIZE[0], dtype=torch.float64)
    loss = (
        weights.get("opacity", 0.0) * values["opacities"].mean() + weights.get("scale", 0.0) * values["scales"].mean()
    )
    for number, frame, target in zip(VIEWS, frames, targets, strict=True):
        color = frame.color @ matrices[number, :, :3].T + matrices[number, :, 3]
        mask, difference = target.get("mask", ones), color - target["color"]
        terms = {"l1": mean(difference.abs(), mask), "l2": mean(difference**2, mask)}
        alike = similarity(color[None], target["color"][None], "same")[0]
        terms["dssim"] = mean(1 - alike, mask)
        loss = loss + sum(weights.get(name, 0.0) * term for name, term in terms.items()) / len(VIEWS)
    if "depth" in weights:
        found = torch.stack([frame.expected_depth for frame in frames])
        target = torch.stack([each["depth"] for each in targets])
        loss = loss + weights["depth"] * (found - target)[target > 0].abs().mean()
    if "alpha" in weights:
        found, target = (
            torch.stack(planes)
            for planes in zip(*[(f.alpha, t["mask"]) for f, t in zip(frames, targets, strict=True)], strict=True)
        )
        loss = loss + weights["alpha"] * (found - target).abs().mean()
    return loss


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_those_of_float64(name: str) -> None:
    weights, planes = LOSSES[name]

    def change(spec: training_pb2.TrainingSpec) -> None:
        spec.loss.CopyFrom(training_pb2.Loss(**weights))

    state = state_of("none", {**RATES, "exposures": 1e-2}, change, planes=planes)
    assert state.exposures is not None
    generator = torch.Generator().manual_seed(0)
    state.exposures.values += 0.1 * torch.randn(state.exposures.values.shape, generator=generator)
    raw = {n: p.raw.double().requires_grad_() for n, p in state.parameters.by_name.items()}
    matrices = state.exposures.values.double().requires_grad_()
    loss = loss_of(state, raw, matrices, weights)
    wanted = torch.autograd.grad(loss, [*raw.values(), matrices], allow_unused=True)
    with maker_of() as maker:
        (done,), resident = maker.all(state, [VIEWS])
    assert resident == 1 and done.loss == pytest.approx(float(loss), rel=1e-5)
    found: dict[str, Any] = {n: state.parameters.by_name[n].first for n in raw}
    found["exposures"] = state.exposures.tensors["first"]
    for (part, first), expected in zip(found.items(), wanted, strict=True):
        # The first moment is that of a single step from 0.
        gradient = first.double() / (1 - state.plan.optimizer.betas[0])
        expected = torch.zeros_like(gradient) if expected is None else expected
        assert (gradient - expected).norm() <= 1e-3 * expected.norm() + 1e-12, part
