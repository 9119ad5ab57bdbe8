"""Parameters for tests of Adam, and a reference in float64."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lumigrad.kernels.training import AdamStep, Parameter, adam_step
from support.backends.training_engines import Engine
from support.gaussians.cases import random_of

Values = NDArray[np.float64]
BETAS, EPSILON = (0.9, 0.999), 1e-15


def activated(raw: Values, activation: str) -> Values:
    if activation == "exp":
        return np.exp(raw)
    return 1.0 / (1.0 + np.exp(-raw)) if activation == "sigmoid" else raw


def slope(raw: Values, activation: str) -> Values:
    value = activated(raw, activation)
    if activation == "exp":
        return value
    return value * (1.0 - value) if activation == "sigmoid" else np.ones_like(raw)


@dataclass
class ReferenceAdam:
    raw: Values
    activation: str
    learning_rate: float
    first: Values = field(init=False)
    second: Values = field(init=False)

    def __post_init__(self) -> None:
        self.first, self.second = np.zeros_like(self.raw), np.zeros_like(self.raw)

    def step(self, gradient: Values, number: int, rows: NDArray[np.bool_] | None = None) -> None:
        """Updates the given rows, or all."""
        chosen = slice(None) if rows is None else rows
        raw, first, second = self.raw[chosen], self.first[chosen], self.second[chosen]
        g = gradient[chosen] * slope(raw, self.activation)
        first = BETAS[0] * first + (1 - BETAS[0]) * g
        second = BETAS[1] * second + (1 - BETAS[1]) * g * g
        root = np.sqrt(second / (1 - BETAS[1] ** number)) + EPSILON
        self.raw[chosen] = raw - self.learning_rate / (1 - BETAS[0] ** number) * first / root
        self.first[chosen], self.second[chosen] = first, second


def parameter(
    name: str, shape: tuple[int, ...], activation: str = "identity", *, learning_rate: float = 0.01
) -> Parameter:
    """A new parameter with random values that depend on its name only."""
    random = random_of(f"parameter {name}")
    draw = lambda: torch.from_numpy(random.standard_normal(shape).astype(np.float32))  # noqa: E731
    return Parameter(
        raw=draw(),
        gradient=draw(),
        first=torch.zeros(shape),
        second=torch.zeros(shape),
        value=torch.full(shape, torch.nan),
        activation=activation,
        learning_rate=learning_rate,
    )


def used(of: Parameter, seed: str = "used") -> Parameter:
    random = random_of(seed)
    shape = tuple(of.raw.shape)
    first = torch.from_numpy(random.standard_normal(shape).astype(np.float32))
    return replace(of, first=first, second=(1.5 * first) ** 2)


def copied(of: Parameter) -> Parameter:
    found = {name: getattr(of, name) for name in ("raw", "gradient", "first", "second", "value", "rows")}
    return replace(of, **{name: it.clone() if isinstance(it, Tensor) else it for name, it in found.items()})


def stepped(
    engine: Engine, parameters: dict[str, Parameter], step: int = 1, **options: object
) -> tuple[dict[str, Parameter], AdamStep]:
    """Copies of the parameters, after a step."""
    there = engine.moved({name: copied(one) for name, one in parameters.items()})
    result = engine.run(adam_step, there, step=step, betas=BETAS, epsilon=EPSILON, **options)
    return {name: copied(one) for name, one in there.items()}, result


def numbers(of: Parameter) -> dict[str, Tensor]:
    assert of.value is not None
    return {"raw": of.raw.cpu(), "first": of.first.cpu(), "second": of.second.cpu(), "value": of.value.cpu()}


def assert_same(actual: Parameter, expected: Parameter) -> None:
    """Asserts that all tensors that a step changes are equal bit by bit."""
    for name, tensor in numbers(expected).items():
        np.testing.assert_array_equal(numbers(actual)[name].view(torch.int32), tensor.view(torch.int32), err_msg=name)
