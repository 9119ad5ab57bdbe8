"""Steps of Adam on parameters that lie behind an activation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lumigrad.kernels import _native
from lumigrad.kernels.checks import check, is_number, is_whole
from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.stages import Stages
from lumigrad.kernels.training.engine import Engine, engine_for
from lumigrad.kernels.training.tensors import check_tensor, described

ACTIVATIONS = ("identity", "exp", "sigmoid")
_GRADIENT_TYPES = (torch.float32, torch.float16, torch.bfloat16)
# The smallest normal float32: smaller ones may be taken for 0.
_SMALLEST_EPSILON = 2.0**-126


@dataclass(frozen=True, kw_only=True, eq=False)
class Parameter:
    """N rows of numbers that are optimised, and what a step needs for them; tensors on one device, in C order.

    Attributes:
        raw: f32 [N, ...], what is optimised; updated in place.
        gradient: f32, f16 or bf16, shaped as `raw`: dL/d value.
        first: f32, shaped as `raw`: running mean of the gradients with respect to `raw`, zeros at first; updated.
        second: f32, shaped as `raw`: running mean of their squares, zeros at first; updated.
        learning_rate: Of this step.
        head: So many numbers at the beginning of each row have `head_learning_rate` instead: of spherical harmonics,
            the constant ones.
        head_learning_rate: Theirs.
        activation: value = raw ("identity"), exp(raw), for |raw| up to 87, or 1 / (1 + exp(-raw)) ("sigmoid").
        value: f32, shaped as `raw`: what is rendered; becomes activation(raw). None: nobody wants it.
        rows: bool or u8 [N], which rows take part; of the others neither moments nor values change. None: all.
    """

    raw: torch.Tensor
    gradient: torch.Tensor
    first: torch.Tensor
    second: torch.Tensor
    learning_rate: float
    head: int = 0
    head_learning_rate: float = 0.0
    activation: str = "identity"
    value: torch.Tensor | None = None
    rows: torch.Tensor | None = None


@dataclass(frozen=True)
class GradientStatistics:
    """Of the gradients with respect to the raw numbers of one parameter, after `gradient_scale`.

    Attributes:
        squares: Sum of their squares, over the rows that were updated.
        largest: The largest absolute value among those.
        not_finite: How many were NaN or infinite, in rows that should have been updated.
        skipped: Rows that were left as they are because of such.
        updated: Rows that were updated.
    """

    squares: float
    largest: float
    not_finite: int
    skipped: int
    updated: int


@dataclass(frozen=True, eq=False)
class AdamStep:
    """What a step tells.

    Attributes:
        names: Of the parameters that have numbers.
        sums: f64 [len(names), 5], on the device: of each a row in the order of `GradientStatistics`.
        times: Of the kernel.
    """

    names: tuple[str, ...]
    sums: torch.Tensor
    times: Stages

    def statistics(self) -> dict[str, GradientStatistics]:
        """By name; on CUDA this waits for the device."""
        rows = self.sums.tolist()
        return {
            name: GradientStatistics(squares, largest, *map(int, counts))
            for name, (squares, largest, *counts) in zip(self.names, rows, strict=True)
        }


@dataclass(frozen=True, eq=False)
class PreparedStep:
    """A step of Adam for which everything is checked and allocated."""

    _names: tuple[str, ...]
    _groups: Sequence[Mapping[str, Any]]
    _settings: Any
    _sums: torch.Tensor
    _engine: Engine | None

    def run(self) -> AdamStep:
        """Make the step. Call it once only."""
        if self._engine is None:
            return AdamStep(self._names, self._sums, Stages())
        times = self._engine.adam(list(self._groups), self._settings, self._sums)
        return AdamStep(self._names, self._sums, Stages([times]))


def adam_step(
    parameters: Mapping[str, Parameter],
    *,
    step: int,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
    gradient_scale: float = 1.0,
) -> AdamStep:
    """One step of `torch.optim.Adam` for all parameters, in one go, through their activations.

    The gradient with respect to the value becomes g = gradient_scale * gradient * d value / d raw; then

        first += (1 - betas[0]) (g - first),  second = betas[1] second + (1 - betas[1]) g^2
        raw -= learning_rate / (1 - betas[0]^step) * first / (sqrt(second) / sqrt(1 - betas[1]^step) + epsilon)

    Rows with a g that is not finite are left as they are, and counted. (Kingma and Ba, "Adam", 2015; leaving out what
    is not seen is Mallick et al., "Taming 3DGS", 2024, section 4.3: the moments of such rows do not decay.)

    Args:
        parameters: By name; on one device, each tensor of them in one parameter only.
        step: The number of this step, from 1 on; the same for all rows.
        betas: Decay of the moments, in [0, 1).
        epsilon: Keeps the denominator from 0; positive.
        gradient_scale: Factor for all gradients.

    Returns:
        What is told of the gradients.

    Raises:
        ArgumentError: An argument does not fit; it says which.
    """
    prepared = prepare_adam(parameters, step=step, betas=betas, epsilon=epsilon, gradient_scale=gradient_scale)
    return prepared.run()


def prepare_adam(
    parameters: Mapping[str, Parameter],
    *,
    step: int,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
    gradient_scale: float = 1.0,
) -> PreparedStep:
    """Checks and allocates all that `adam_step` needs, and changes nothing: running it has nothing left to fail at.

    Args:
        parameters: See `adam_step`.
        step: See `adam_step`.
        betas: See `adam_step`.
        epsilon: See `adam_step`.
        gradient_scale: See `adam_step`.

    Raises:
        ArgumentError: An argument does not fit; it says which.
    """
    check(isinstance(parameters, Mapping), "parameters", "Parameters by name", type(parameters).__name__)
    settings = _settings(step, betas, epsilon, gradient_scale)
    first_power = 1.0 - float(betas[0]) ** int(step)
    groups, device = {}, None
    for name, parameter in parameters.items():
        check(isinstance(parameter, Parameter), name, "a Parameter", type(parameter).__name__)
        device = _check(name, parameter, device)
        if parameter.raw.numel() > 0:
            groups[name] = _group(parameter, first_power)
    if not groups:
        return PreparedStep((), (), settings, torch.zeros(0, _native.ADAM_SUMS, dtype=torch.float64), None)
    assert device is not None
    sums = torch.empty(len(groups), _native.ADAM_SUMS, dtype=torch.float64, device=device)
    return PreparedStep(tuple(groups), tuple(groups.values()), settings, sums, engine_for(device))


def _settings(step: int, betas: Sequence[float], epsilon: float, gradient_scale: float) -> Any:
    check(is_whole(step) and step >= 1, "step", "a whole number from 1 on", step)
    pair = isinstance(betas, Sequence) and len(betas) == 2 and all(map(is_number, betas))
    check(pair and all(0.0 <= beta < 1.0 for beta in betas), "betas", "two numbers in [0, 1)", betas)
    fits = is_number(epsilon) and _SMALLEST_EPSILON <= float(epsilon) < math.inf
    check(fits, "epsilon", f"a positive number, at least {_SMALLEST_EPSILON:.2g}", epsilon)
    fits = is_number(gradient_scale) and math.isfinite(gradient_scale)
    check(fits, "gradient_scale", "a finite number", gradient_scale)
    first, second = map(float, betas)
    return _native.make_adam_settings(
        first_weight=1.0 - first,
        second_decay=second,
        second_weight=1.0 - second,
        root_correction=1.0 / math.sqrt(1.0 - second ** int(step)),
        epsilon=float(epsilon),
        gradient_scale=float(gradient_scale),
    )


def _check(name: str, parameter: Parameter, device: torch.device | None) -> torch.device:
    """The device of the tensors, which is `device` if there is one.

    Raises:
        ArgumentError: A tensor or number does not fit.
    """
    raw = parameter.raw
    if not isinstance(raw, torch.Tensor) or raw.dim() < 1:
        raise ArgumentError(f"{name}.raw", "a float32 tensor of shape [N, ...]", described(raw))
    where = device or raw.device
    shape = list(raw.shape)
    check_tensor(f"{name}.raw", raw, (torch.float32,), shape, where, in_place=True)
    check_tensor(f"{name}.gradient", parameter.gradient, _GRADIENT_TYPES, shape, where)
    written = {"raw": raw, "first": parameter.first, "second": parameter.second, "value": parameter.value}
    for part, tensor in written.items():
        if part != "value" or tensor is not None:
            check_tensor(f"{name}.{part}", tensor, (torch.float32,), shape, where, in_place=True)
    places = [tensor.data_ptr() for tensor in written.values() if tensor is not None and tensor.data_ptr() != 0]
    check(
        len(set(places)) == len(places), name, "raw, first, second and value apart from each other", "the same memory"
    )
    if parameter.rows is not None:
        check_tensor(f"{name}.rows", parameter.rows, (torch.bool, torch.uint8), shape[:1], where)
    check(parameter.activation in ACTIVATIONS, f"{name}.activation", f"one of {ACTIVATIONS}", parameter.activation)
    for part in ("learning_rate", "head_learning_rate"):
        rate = getattr(parameter, part)
        check(is_number(rate) and 0.0 <= rate < math.inf, f"{name}.{part}", "a finite number, not negative", rate)
    width = math.prod(shape[1:])
    head = parameter.head
    check(is_whole(head) and 0 <= head <= width, f"{name}.head", f"0 to {width}, the numbers of a row", head)
    return where


def _group(parameter: Parameter, first_power: float) -> dict[str, Any]:
    """As the native functions take it: rows by numbers, small floats and bools as integers of their size.

    `first_power` corrects the bias of the first moment.
    """
    shape = (parameter.raw.shape[0], -1)
    gradient = parameter.gradient.detach().contiguous()
    rows = parameter.rows
    flat = {
        name: getattr(parameter, name).detach().view(shape)
        for name in ("raw", "first", "second", "value")
        if getattr(parameter, name) is not None
    }
    return {
        **flat,
        "gradient": gradient if gradient.dtype == torch.float32 else gradient.view(torch.int16),
        "rows": None if rows is None else rows.contiguous().view(torch.uint8),
        "gradient_type": _GRADIENT_TYPES.index(gradient.dtype),
        "activation": ACTIVATIONS.index(parameter.activation),
        "step_size": parameter.learning_rate / first_power,
        "head": parameter.head,
        "head_step_size": parameter.head_learning_rate / first_power,
    }
