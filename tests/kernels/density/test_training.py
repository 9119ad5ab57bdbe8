"""Density control where it belongs: in trainings, which it makes better, and which can be repeated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from lumigrad.kernels import density
from lumigrad.kernels import gaussians as engine
from lumigrad.kernels.density import Draw, Parameters, Statistics, Thresholds
from lumigrad.kernels.training import Parameter, adam_step
from support.training.density_clouds import gaussians

WIDTH, HEIGHT, STEPS = 80, 60, 160
RATES = {"means": 5e-3, "quats": 1e-2, "scales": 1e-2, "opacities": 5e-2, "sh": 2e-2}
ACTIVATIONS = {"scales": "exp", "opacities": "sigmoid"}
CAMERA = engine.Camera.opencv(70.0, 70.0, WIDTH / 2, HEIGHT / 2, np.eye(3), np.array([0.0, 0.0, 4.0]), WIDTH, HEIGHT)


def values_of(raw: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What is rendered."""
    return {**raw, "scales": raw["scales"].exp(), "opacities": raw["opacities"].sigmoid()}


def picture() -> torch.Tensor:
    """Of Gaussians that are not known: finer than those that a training starts from."""
    truth = {name: tensor.clone() for name, tensor in gaussians(600, seed=8, coefficients=1).tensors.items()}
    truth["scales"] = truth["scales"] * 0.3 - 1.8
    truth["opacities"] = truth["opacities"].abs()
    scene = engine.Gaussians(**values_of(truth))
    return engine.forward(scene, [CAMERA], engine.Settings()).outputs["color"]


@dataclass
class Training:
    """A few large Gaussians on their way to a picture; `control` is asked after every step."""

    target: torch.Tensor
    control: Callable[[Training, int], object]
    losses: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        start = gaussians(30, seed=1, coefficients=1).tensors
        tensors = {**start, "scales": torch.full((30, 3), -1.0), "opacities": torch.zeros(30)}
        moments = {name: (torch.zeros_like(tensor), torch.zeros_like(tensor)) for name, tensor in tensors.items()}
        self.parameters = Parameters(tensors, moments)
        self.statistics = Statistics.zeros(self.parameters)

    def run(self) -> Training:
        for step in range(1, STEPS + 1):
            self._step(step)
            self.control(self, step)
            self.counts.append(self.parameters.count)
        return self

    def _step(self, step: int) -> None:
        raw = dict(self.parameters.tensors)
        scene = engine.Gaussians(**values_of(raw))
        frame = engine.forward(scene, [CAMERA], engine.Settings(), outputs=("color", "radii"), retain=True)
        error = frame.outputs["color"] - self.target
        self.losses.append(float((error**2).mean()))
        assert frame.state is not None
        upstream = {"color": 2.0 * error / error.numel()}
        gradients = engine.backward(frame.state, upstream, wanted=(*raw, "means2d")).gradients
        density.accumulate(self.statistics, gradients["means2d"], frame.outputs["radii"], width=WIDTH, height=HEIGHT)
        parameters = {
            name: Parameter(
                raw=tensor,
                gradient=gradients[name],
                first=self.parameters.moments[name][0],
                second=self.parameters.moments[name][1],
                learning_rate=RATES[name],
                activation=ACTIVATIONS.get(name, "identity"),
            )
            for name, tensor in raw.items()
        }
        adam_step(parameters, step=step)


def nothing(training: Training, step: int) -> None:
    """As many Gaussians as there were."""


def clones_and_splits(training: Training, step: int) -> None:
    """Every twenty steps."""
    if step % 20 == 0 and step <= 120:
        thresholds = Thresholds(grow_gradient=2e-4, clone_size=0.05)
        plan = density.plan(training.parameters, training.statistics, thresholds, extent=3.0, after_reset=False)
        training.parameters = density.apply(plan, training.parameters, Draw(1, step)).parameters
        training.statistics = Statistics.zeros(training.parameters)


def relocation_and_noise(training: Training, step: int) -> None:
    """Half as many more every twenty steps, up to 300."""
    density.add_noise(training.parameters, Draw(1, step), learning_rate=RATES["means"], noise_rate=1.0)
    if step % 20 == 0 and step <= 120:
        density.relocate(training.parameters, Draw(1, step))
        added = density.add_gaussians(training.parameters, Draw(1, step), cap=300, growth=0.5)
        training.parameters = added.parameters
        training.statistics = Statistics.zeros(training.parameters)


def test_growth_finds_what_few_gaussians_cannot() -> None:
    target = picture()
    few = Training(target, nothing).run()
    assert few.losses[-1] < 0.7 * few.losses[0]
    for control in (clones_and_splits, relocation_and_noise):
        grown = Training(target, control).run()
        assert grown.counts[-1] >= 100
        assert grown.losses[-1] < 0.7 * few.losses[-1], control.__name__


def test_trainings_can_be_repeated_to_the_bit() -> None:
    target = picture()
    for control in (clones_and_splits, relocation_and_noise):
        first, second = (Training(target, control).run() for _ in range(2))
        assert first.losses == second.losses and first.counts == second.counts
        for name, tensor in first.parameters.tensors.items():
            assert torch.equal(tensor, second.parameters.tensors[name]), name
