"""Adam, on parameters with an activation function."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from lumigrad.kernels import _native
from lumigrad.kernels.checks import check, is_number, is_whole
from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.functions import Functions
from lumigrad.kernels.stages import Stages
from lumigrad.kernels.training.engine import CpuEngine, engine_for
from lumigrad.kernels.training.tensors import check_tensor, described

ACTIVATIONS = ("identity", "exp", "sigmoid")
_GRADIENT_TYPES = (torch.float32, torch.float16, torch.bfloat16)
# The smallest normal float32; some CPU and GPU modes flush smaller values to 0.
_SMALLEST_EPSILON = 2.0**-126


@dataclass(frozen=True, eq=False)
class HarmonicsGradient:
    """The gradient of spherical harmonics that one view shows, on CUDA only: an eighth of the memory of the gradient.

    The gradient of coefficient k of a row is harmonic k of the row's direction times the gradient of its colour, and 0
    for coefficients beyond the degree.

    Attributes:
        factors: f32 [N, 6], a unit direction and dL/d colour, as `gaussians.backward` returns for "sh_factors".
        degree: The degree up to which colours depend on the harmonics, 0 to 4.
    """

    factors: torch.Tensor
    degree: int


Gradient: TypeAlias = torch.Tensor | HarmonicsGradient


@dataclass(frozen=True, kw_only=True, eq=False)
class Parameter:
    """A parameter of N rows, with its gradient and optimiser state; contiguous tensors on one device.

    Attributes:
        raw: f32 [N, ...], the values to optimise, before the activation; updated in place.
        gradient: f32, f16 or bf16, shaped as `raw`: dL/d value. Or a `HarmonicsGradient`, for `raw` of shape [N, K, 3]
            with K at least 4.
        first: f32, shaped as `raw`: running mean of the gradients with respect to `raw`, initially 0; updated.
        second: f32, shaped as `raw`: running mean of the squared gradients, initially 0; updated.
        learning_rate: The learning rate of this step.
        head: The number of leading entries of each row that use `head_learning_rate` instead: for spherical
            harmonics, the coefficients of degree 0.
        head_learning_rate: The learning rate of the first `head` entries.
        activation: value = raw ("identity"), exp(raw) ("exp"), for |raw| up to 87, or 1 / (1 + exp(-raw)) ("sigmoid").
        value: f32, shaped as `raw`: receives activation(raw), from which images are rendered. None: not computed.
        rows: bool or u8 [N], which rows to update; moments and values of the other rows do not change. None: all.
    """

    raw: torch.Tensor
    gradient: Gradient
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
    """Statistics of the gradient with respect to one parameter's `raw`, after `gradient_scale`.

    Attributes:
        squares: Sum of squares over the updated rows.
        largest: Largest absolute value in the updated rows.
        not_finite: Number of NaN or infinite entries in the rows to update.
        skipped: Number of rows that were not updated because of NaN or infinite entries.
        updated: Number of rows that were updated.
    """

    squares: float
    largest: float
    not_finite: int
    skipped: int
    updated: int


@dataclass(frozen=True, eq=False)
class AdamStep:
    """The result of a step.

    Attributes:
        names: Names of the parameters that are not empty.
        sums: f64 [len(names), 5], on the device: one row per parameter, in the order of `GradientStatistics`.
        times: Time of the kernel.
    """

    names: tuple[str, ...]
    sums: torch.Tensor
    times: Stages

    def statistics(self) -> dict[str, GradientStatistics]:
        """Statistics by parameter name; on CUDA this waits for the device."""
        return statistics_of(self.names, self.sums.tolist())


def statistics_of(names: Sequence[str], sums: Sequence[Sequence[float]]) -> dict[str, GradientStatistics]:
    """`AdamStep.statistics` from its names, and its sums on the host."""
    return {
        name: GradientStatistics(squares, largest, *map(int, counts))
        for name, (squares, largest, *counts) in zip(names, sums, strict=True)
    }


@dataclass(frozen=True, eq=False)
class PreparedStep:
    """A step of Adam whose arguments are checked and whose memory is allocated.

    Attributes:
        names: See `AdamStep`.
        sums: See `AdamStep`; undefined before the step.
    """

    names: tuple[str, ...]
    sums: torch.Tensor
    _groups: Sequence[Mapping[str, Any]]
    _settings: Any
    _engine: Functions | None

    def run(self) -> AdamStep:
        """Runs the step; may be called only once."""
        if self._engine is None:
            return AdamStep(self.names, self.sums, Stages())
        times = self._engine.run("adam", list(self._groups), self._settings, self.sums)
        return AdamStep(self.names, self.sums, Stages([times]))


def adam_step(
    parameters: Mapping[str, Parameter],
    *,
    step: int,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
    gradient_scale: float = 1.0,
) -> AdamStep:
    """One step of `torch.optim.Adam` for all parameters, in one kernel, with the derivatives of their activations.

    With the gradient with respect to raw values, g = gradient_scale * gradient * d value / d raw,

        first += (1 - betas[0]) (g - first),  second = betas[1] second + (1 - betas[1]) g^2
        raw -= learning_rate / (1 - betas[0]^step) * first / (sqrt(second) / sqrt(1 - betas[1]^step) + epsilon)

    Rows in which any g is NaN or infinite are skipped and counted. (Kingma and Ba, "Adam", 2015; skipping primitives
    that no view shows is from Mallick et al., "Taming 3DGS", 2024, section 4.3: the moments of such rows do not decay.)

    Args:
        parameters: By name; all on one device, without tensors in common.
        step: The number of this step, 1 or more; the same for all rows.
        betas: Decay rates of the moments, in [0, 1).
        epsilon: Added to the denominator; positive.
        gradient_scale: Factor for all gradients.

    Returns:
        Statistics of the gradients.

    Raises:
        ArgumentError: An argument is invalid; the message names it.
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
    """Checks the arguments of `adam_step` and allocates its memory, so that `run` cannot fail; changes no tensor.

    Args:
        parameters: See `adam_step`.
        step: See `adam_step`.
        betas: See `adam_step`.
        epsilon: See `adam_step`.
        gradient_scale: See `adam_step`.

    Raises:
        ArgumentError: An argument is invalid; the message names it.
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
        return PreparedStep(
            (), torch.zeros(0, _native.ADAM_SUMS, dtype=torch.float64, device="cpu"), (), settings, None
        )
    assert device is not None
    sums = torch.empty(len(groups), _native.ADAM_SUMS, dtype=torch.float64, device=device)
    engine = engine_for(device)
    if isinstance(engine, CpuEngine) and any(group["factors"] is not None for group in groups.values()):
        raise ArgumentError("gradient", "a tensor on the CPU", "a gradient of harmonics by factors")
    return PreparedStep(tuple(groups), sums, tuple(groups.values()), settings, engine)


def _settings(step: int, betas: Sequence[float], epsilon: float, gradient_scale: float) -> Any:
    check(is_whole(step) and step >= 1, "step", "a whole number >= 1", step)
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
    """Checks a parameter and returns its device, which must be `device` unless that is None.

    Raises:
        ArgumentError: A tensor or number is invalid.
    """
    raw = parameter.raw
    if not isinstance(raw, torch.Tensor) or raw.dim() < 1:
        raise ArgumentError(f"{name}.raw", "a float32 tensor of shape [N, ...]", described(raw))
    where = device or raw.device
    shape = raw.shape
    check_tensor(f"{name}.raw", raw, (torch.float32,), shape, where, in_place=True)
    if isinstance(parameter.gradient, HarmonicsGradient):
        _check_harmonics(f"{name}.gradient", parameter.gradient, parameter, where)
    else:
        check_tensor(f"{name}.gradient", parameter.gradient, _GRADIENT_TYPES, shape, where)
    addresses = [raw.data_ptr()]
    for part in ("first", "second", "value"):
        tensor = getattr(parameter, part)
        if part != "value" or tensor is not None:
            check_tensor(f"{name}.{part}", tensor, (torch.float32,), shape, where, in_place=True)
            addresses.append(tensor.data_ptr())
    # Empty tensors and tensors without memory have no address.
    addresses = [address for address in addresses if address != 0]
    separate = len(set(addresses)) == len(addresses)
    check(separate, name, "raw, first, second and value in separate memory", "the same memory")
    if parameter.rows is not None:
        check_tensor(f"{name}.rows", parameter.rows, (torch.bool, torch.uint8), shape[:1], where)
    check(parameter.activation in ACTIVATIONS, f"{name}.activation", f"one of {ACTIVATIONS}", parameter.activation)
    for part in ("learning_rate", "head_learning_rate"):
        rate = getattr(parameter, part)
        check(is_number(rate) and 0.0 <= rate < math.inf, f"{name}.{part}", "a finite number >= 0", rate)
    width = math.prod(shape[1:])
    head = parameter.head
    check(is_whole(head) and 0 <= head <= width, f"{name}.head", f"0 to {width}, the length of a row", head)
    return where


def _check_harmonics(name: str, gradient: HarmonicsGradient, parameter: Parameter, where: torch.device) -> None:
    shape = parameter.raw.shape
    coefficients = shape[1] if len(shape) == 3 and shape[2] == 3 else 0
    check(coefficients >= 4, name, "a tensor, or one of harmonics for `raw` of shape [N, 4 or more, 3]", list(shape))
    check_tensor(f"{name}.factors", gradient.factors, (torch.float32,), (shape[0], 6), where)
    degree = gradient.degree
    fits = is_whole(degree) and 0 <= degree <= 4 and (degree + 1) ** 2 <= coefficients
    check(fits, f"{name}.degree", f"a degree of which there are {coefficients} coefficients", degree)
    check(parameter.activation == "identity", name, "a tensor where there is an activation", "one of harmonics")


def _gradient(gradient: Gradient) -> dict[str, Any]:
    """The extension's arguments for a gradient."""
    if isinstance(gradient, HarmonicsGradient):
        factors = gradient.factors.contiguous()
        return {"gradient": None, "gradient_type": 0, "factors": factors, "degree": gradient.degree}
    dense = gradient.contiguous()
    return {
        "gradient": dense if dense.dtype == torch.float32 else dense.view(torch.int16),
        "gradient_type": _GRADIENT_TYPES.index(dense.dtype),
        "factors": None,
        "degree": 0,
    }


def _group(parameter: Parameter, first_power: float) -> dict[str, Any]:
    """The extension's arguments, with f16, bf16 and bool as integers of the same size.

    `first_power` corrects the bias of the first moment.
    """
    rows = parameter.rows
    return {
        "raw": parameter.raw,
        "first": parameter.first,
        "second": parameter.second,
        "value": parameter.value,
        **_gradient(parameter.gradient),
        "rows": None if rows is None else rows.contiguous().view(torch.uint8),
        "activation": ACTIVATIONS.index(parameter.activation),
        "step_size": parameter.learning_rate / first_power,
        "head": parameter.head,
        "head_step_size": parameter.head_learning_rate / first_power,
    }
