"""Parameters of a training: learning rates, Adam, refined poses and exposures."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, prod

import numpy as np
import numpy.typing as npt
import torch

from lumigrad.kernels import resident, training
from lumigrad.server.core.limits import require
from lumigrad.server.engines.content import Shapes, Tensors
from lumigrad.v1 import training_pb2

_BETA1 = 0.9
_BETA2 = 0.999
_EPSILON = 1e-15
# The colour parameter of each engine.
_COLORS = ("colors", "sh0")
# The largest number that fits into the extension's integers.
_MOST_STEPS = (1 << 63) - 1


def paced(steps: int, pace: float) -> int:
    """Return a schedule's number of steps at another pace: at least 1, unless it is 0."""
    return min(max(round(steps / pace), 1), _MOST_STEPS) if steps else 0


@dataclass(frozen=True)
class Rate:
    """A learning rate that changes log-linearly from `initial` to `final` over `steps`."""

    initial: float
    final: float
    steps: int

    @staticmethod
    def of(message: training_pb2.Rate, field: str) -> Rate:
        """Check a rate message; the InvalidArgumentError names fields below `field`."""
        require(_is_size(message.initial), f"{field}.initial", "a finite rate >= 0", message.initial)
        require(_is_size(message.final), f"{field}.final", "a finite rate >= 0", message.final)
        falls = message.final > 0
        require(not falls or message.initial > 0, f"{field}.initial", "a rate > 0 with a final one", message.initial)
        require(not falls or message.steps > 0, f"{field}.steps", "at least 1 with a final rate", message.steps)
        return Rate(message.initial, message.final, message.steps)

    def paced(self, pace: float) -> Rate:
        """Return this rate at another pace, see `training_pb2.Step`."""
        return replace(self, steps=paced(self.steps, pace))

    def over(self, steps: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return the rates of several steps."""
        if not self.final:
            return np.full(len(steps), self.initial)
        return np.asarray(self.initial * (self.final / self.initial) ** np.minimum(steps / self.steps, 1.0))

    @property
    def numbers(self) -> tuple[float, float, int]:
        """The attributes, in their order."""
        return self.initial, self.final, self.steps

    def at(self, step: int) -> float:
        """Return the rate of a step, counted from 0."""
        if not self.final:
            return self.initial
        share = min(step / self.steps, 1.0)
        return float(self.initial * (self.final / self.initial) ** share) if share < 1.0 else self.final


@dataclass(frozen=True)
class Optimizer:
    """Adam's settings."""

    rates: Mapping[str, Rate]
    betas: tuple[float, float]
    epsilon: float
    visible_only: bool

    @property
    def changes_colors(self) -> bool:
        """Whether colours are optimised. If so, exposures could cancel a change of all colours, so they are centred."""
        return any(name in self.rates and self.rates[name].initial for name in _COLORS)

    @staticmethod
    def of(message: training_pb2.Optimizer, known: Collection[str], field: str) -> Optimizer:
        """Check an optimiser message; `known` are the names of all parameters."""
        for name in message.rates:
            require(name in known, f"{field}.rates", f"one of {', '.join(known)}", name)
        require(bool(message.rates), f"{field}.rates", f"at least one of {', '.join(known)}", "none")
        rates = {
            name: Rate.of(message.rates[name], f"{field}.rates[{name}]") for name in known if name in message.rates
        }
        beta1 = message.beta1 if message.HasField("beta1") else _BETA1
        beta2 = message.beta2 if message.HasField("beta2") else _BETA2
        for name, beta in (("beta1", beta1), ("beta2", beta2)):
            require(0.0 <= beta < 1.0, f"{field}.{name}", "a value in [0, 1)", beta)
        epsilon = message.epsilon if message.HasField("epsilon") else _EPSILON
        require(isfinite(epsilon) and epsilon > 0, f"{field}.epsilon", "a finite value > 0", epsilon)
        return Optimizer(rates, (beta1, beta2), epsilon, message.visible_only)


def _is_size(value: float) -> bool:
    return isfinite(value) and value >= 0


class Refinement:
    """A tensor with a row per view or calibration, its Adam moments, and each row's number of steps."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values
        self._first = torch.zeros_like(values)
        self._second = torch.zeros_like(values)
        self._steps = np.zeros(len(values), np.int64)

    @staticmethod
    def row_bytes(width: int) -> int:
        """Return the bytes of a row with `width` values: values, moments and the number of steps."""
        return 3 * 4 * width + 8

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """All tensors, by name."""
        return {
            "values": self.values,
            "first": self._first,
            "second": self._second,
            "steps": torch.from_numpy(self._steps),
        }

    def bound(self, rate: Rate, *, is_centered: bool) -> resident.Exposures:
        """Return the tensors that steps without Python change in place."""
        tensors = self.tensors
        return resident.Exposures(**tensors, rate=rate.numbers, is_centered=is_centered)

    def rows(self, numbers: Sequence[int]) -> torch.Tensor:
        """Return the values of some rows, in this order."""
        # Indexing with a list would copy the indices to the device, and the host would wait for that.
        return torch.stack([self.values[number] for number in numbers])

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Restore the tensors that `tensors` returned."""
        self.values, self._first, self._second = tensors["values"], tensors["first"], tensors["second"]
        self._steps = tensors["steps"].cpu().numpy().copy()

    def copied(self, device: torch.device | None = None) -> Refinement:
        """Return a deep copy on `device`, by default on that of the original."""
        other = Refinement.__new__(Refinement)
        device = device or self.values.device
        other.values, other._first, other._second = (
            tensor.to(device, copy=True) for tensor in (self.values, self._first, self._second)
        )
        other._steps = self._steps.copy()
        return other

    def changed(self, other: Refinement) -> list[int]:
        """Return the rows whose number of steps differs from that in `other`."""
        return [int(row) for row in np.flatnonzero(self._steps != other._steps)]

    def stepped(self, rows: Sequence[int], gradient: torch.Tensor, rate: float, optimizer: Optimizer) -> Refinement:
        """Return a copy after a step of Adam for some rows, each named once; `gradient` has a row for each."""
        stepped = self.copied()
        for place, row in enumerate(rows):
            stepped._steps[row] += 1
            parameter = training.Parameter(
                raw=stepped.values[row : row + 1],
                gradient=gradient[place : place + 1].contiguous(),
                first=stepped._first[row : row + 1],
                second=stepped._second[row : row + 1],
                learning_rate=rate,
            )
            number = int(stepped._steps[row])
            training.adam_step({"row": parameter}, betas=optimizer.betas, epsilon=optimizer.epsilon, step=number)
        return stepped

    def copy_row(self, other: Refinement, row: int) -> None:
        """Copy a row, with its moments and number of steps, from another refinement."""
        for own, others in ((self.values, other.values), (self._first, other._first), (self._second, other._second)):
            own[row] = others[row]
        self._steps[row] = other._steps[row]

    def clear(self, row: int) -> torch.Tensor:
        """Return a row's values and set them to zero; the caller applies them to the camera."""
        taken = self.values[row].clone()
        self.values[row] = 0.0
        return taken


# The tensors that are optimised as logarithms or logits.
_ACTIVATIONS = {"scales": "exp", "radii": "exp", "opacities": "sigmoid"}
_FLOAT_BYTES = 4
# Temporary float64 copies of a tensor, counted as float32: the value, clamped, and its logits.
_WORKING_COPIES = 6
# Keep raw values finite where the scene's values are at the limit of their range.
_LEAST_LENGTH = 1e-12
_LEAST_SHARE = 1e-7
# Spherical harmonics have one rate for the constant coefficient and another for all higher ones.
_SH = ("sh0", "sh_rest")


def parameters_of(tensor: str) -> tuple[str, ...]:
    """Return the names that learning rates use for the parameters of a scene's tensor."""
    return _SH if tensor == "sh" else (tensor,)


@dataclass
class Parameter:
    """A tensor of the scene, which may be optimised.

    Attributes:
        raw: [N, ...], the optimised values.
        value: [N, ...], the rendered values; the same tensor if there is no activation.
        first: Adam's first moments; None if the tensor is not optimised.
        second: Adam's second moments.
    """

    name: str
    raw: torch.Tensor
    value: torch.Tensor
    first: torch.Tensor | None = None
    second: torch.Tensor | None = None

    @property
    def activation(self) -> str:
        """The activation that maps `raw` to `value`."""
        return _ACTIVATIONS.get(self.name, "identity")

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """All tensors, by attribute."""
        value = None if self.value is self.raw else self.value
        tensors = {"raw": self.raw, "value": value, "first": self.first, "second": self.second}
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}

    @staticmethod
    def of(name: str, tensors: Mapping[str, torch.Tensor]) -> Parameter:
        """Create a parameter from what `tensors` returned."""
        raw = tensors["raw"]
        return Parameter(name, raw, tensors.get("value", raw), tensors.get("first"), tensors.get("second"))


class Parameters:
    """All tensors of the trained scene."""

    def __init__(self, parameters: Mapping[str, Parameter]) -> None:
        self.by_name = dict(parameters)

    @staticmethod
    def of_scene(tensors: Tensors, optimizer: Optimizer) -> Parameters:
        """Create parameters from copies of a scene's tensors."""
        parameters = {}
        for name, value in tensors.items():
            made = _begun(value, _ACTIVATIONS.get(name, "identity"))
            if any(part in optimizer.rates for part in parameters_of(name)):
                made |= {"first": torch.zeros_like(value), "second": torch.zeros_like(value)}
            parameters[name] = Parameter.of(name, made)
        return Parameters(parameters)

    @staticmethod
    def row_bytes(shapes: Shapes, optimizer: Optimizer) -> int:
        """Return the bytes per primitive of a scene whose tensors have these shapes."""
        total = 0
        for name, shape in shapes.items():
            is_optimized = any(part in optimizer.rates for part in parameters_of(name))
            copies = 1 + (name in _ACTIVATIONS) + 2 * is_optimized
            total += copies * _FLOAT_BYTES * prod(shape[1:])
        return total

    @staticmethod
    def working_bytes(shapes: Shapes) -> int:
        """Return the additional bytes per primitive while `of_scene` computes the raw tensors, one after the other.

        Tensors without an activation are only copied.
        """
        widths = [prod(shape[1:]) for name, shape in shapes.items() if name in _ACTIVATIONS]
        return _WORKING_COPIES * _FLOAT_BYTES * max(widths, default=0)

    @property
    def values(self) -> dict[str, torch.Tensor]:
        """The scene's tensors by name, which the next step changes in place."""
        return {name: parameter.value for name, parameter in self.by_name.items()}

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """All tensors, by the names of the parameter and of its part."""
        return {
            f"{name}.{part}": tensor
            for name, parameter in self.by_name.items()
            for part, tensor in parameter.tensors.items()
        }

    @property
    def wanted(self) -> tuple[str, ...]:
        """The names of the tensors that need gradients."""
        return tuple(name for name, parameter in self.by_name.items() if parameter.first is not None)

    @property
    def count(self) -> int:
        """The number of primitives."""
        return int(next(iter(self.by_name.values())).raw.shape[0])

    def activate(self) -> None:
        """Recompute the values after the raw tensors were changed directly."""
        for name, parameter in self.by_name.items():
            if parameter.activation == "identity":
                parameter.value = parameter.raw
            else:
                parameter.value = parameter.raw.exp() if parameter.activation == "exp" else parameter.raw.sigmoid()
            self.by_name[name] = parameter

    def copied(self) -> Parameters:
        """Return a deep copy."""
        return self.mapped(torch.Tensor.clone)

    def mapped(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Parameters:
        """Return parameters with `change` applied to each tensor."""
        return Parameters(
            {
                name: Parameter.of(name, {part: change(tensor) for part, tensor in parameter.tensors.items()})
                for name, parameter in self.by_name.items()
            }
        )

    def prepared_step(
        self,
        gradients: Tensors,
        harmonics: training.HarmonicsGradient | None,
        optimizer: Optimizer,
        step: int,
        rows: torch.Tensor | None,
    ) -> training.PreparedStep:
        """Prepare a step of Adam; `step` counts from 0, and `rows` selects rows, all if None.

        `harmonics` is the gradient of "sh", if `gradients` does not have it.
        """
        known: dict[str, training.Gradient] = dict(gradients)
        if harmonics is not None:
            known["sh"] = harmonics
        groups = {name: self._group(name, known[name], optimizer, step, rows) for name in self.wanted}
        return training.prepare_adam(groups, betas=optimizer.betas, epsilon=optimizer.epsilon, step=step + 1)

    def _group(
        self, name: str, gradient: training.Gradient, optimizer: Optimizer, step: int, rows: torch.Tensor | None
    ) -> training.Parameter:
        parameter = self.by_name[name]
        assert parameter.first is not None and parameter.second is not None
        rates = [optimizer.rates[part].at(step) if part in optimizer.rates else 0.0 for part in parameters_of(name)]
        return training.Parameter(
            raw=parameter.raw,
            gradient=gradient,
            first=parameter.first,
            second=parameter.second,
            value=None if parameter.value is parameter.raw else parameter.value,
            activation=parameter.activation,
            learning_rate=rates[-1],
            # The constant harmonic's coefficients are the first of each row.
            head=int(parameter.raw.shape[-1]) if len(rates) > 1 else 0,
            head_learning_rate=rates[0],
            rows=rows,
        )


def _begun(value: torch.Tensor, activation: str) -> dict[str, torch.Tensor]:
    """Return the raw tensor whose activation is `value`, and `value` itself if there is an activation."""
    # Computed in float64, so that the rounding does not depend on the position in a tensor.
    if activation == "exp":
        raw = value.double().clamp_min_(_LEAST_LENGTH).log_().float()
        return {"raw": raw, "value": raw.double().exp_().float()}
    if activation == "sigmoid":
        raw = value.double().clamp_(_LEAST_SHARE, 1.0 - _LEAST_SHARE).logit_().float()
        return {"raw": raw, "value": raw.double().sigmoid_().float()}
    return {"raw": value.clone(memory_format=torch.contiguous_format)}
