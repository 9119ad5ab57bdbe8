"""The parameters of a training: raw values that are optimised, the scene's values, and the optimiser's moments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch

from lumigrad.kernels import training
from lumigrad.server.arrivals import Shapes
from lumigrad.server.content import Tensors
from lumigrad.server.training.rates import Optimizer

# The tensors of a scene whose raw values are others: logarithms and logits.
_ACTIVATIONS = {"scales": "exp", "radii": "exp", "opacities": "sigmoid"}
_FLOAT_BYTES = 4
# Of one tensor, as it is made: its double, that within limits, and the logits of that.
_WORKING_COPIES = 6
# Raw values stay finite where the scene's are at the border of what is allowed.
_LEAST_LENGTH = 1e-12
_LEAST_SHARE = 1e-7
# Spherical harmonics have a rate for the constant ones, and one for all others.
_SH = ("sh0", "sh_rest")


def parameters_of(tensor: str) -> tuple[str, ...]:
    """The parameters, as rates name them, that a scene's tensor consists of."""
    return _SH if tensor == "sh" else (tensor,)


@dataclass
class Parameter:
    """One tensor of the scene.

    Attributes:
        name: The tensor's.
        raw: [N, ...], what is optimised.
        value: [N, ...], what is rendered; the same tensor where there is nothing between them.
        first: The first moments; None: it is not optimised.
        second: The second moments.
    """

    name: str
    raw: torch.Tensor
    value: torch.Tensor
    first: torch.Tensor | None = None
    second: torch.Tensor | None = None

    @property
    def activation(self) -> str:
        """From raw to value."""
        return _ACTIVATIONS.get(self.name, "identity")

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """What makes it up, by attribute."""
        value = None if self.value is self.raw else self.value
        tensors = {"raw": self.raw, "value": value, "first": self.first, "second": self.second}
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}

    @staticmethod
    def of(name: str, tensors: Mapping[str, torch.Tensor]) -> Parameter:
        """From what `tensors` gave."""
        raw = tensors["raw"]
        return Parameter(name, raw, tensors.get("value", raw), tensors.get("first"), tensors.get("second"))


class Parameters:
    """All tensors of the scene that is trained."""

    def __init__(self, parameters: Mapping[str, Parameter]) -> None:
        self.by_name = dict(parameters)

    @staticmethod
    def of_scene(tensors: Tensors, optimizer: Optimizer) -> Parameters:
        """Begin with a scene, of which copies are made."""
        parameters = {}
        for name, value in tensors.items():
            made = _begun(value, _ACTIVATIONS.get(name, "identity"))
            if any(part in optimizer.rates for part in parameters_of(name)):
                made |= {"first": torch.zeros_like(value), "second": torch.zeros_like(value)}
            parameters[name] = Parameter.of(name, made)
        return Parameters(parameters)

    @staticmethod
    def row_bytes(shapes: Shapes, optimizer: Optimizer) -> int:
        """Memory that each primitive takes of a scene whose tensors have these shapes."""
        total = 0
        for name, shape in shapes.items():
            is_optimized = any(part in optimizer.rates for part in parameters_of(name))
            copies = 1 + (name in _ACTIVATIONS) + 2 * is_optimized
            total += copies * _FLOAT_BYTES * prod(shape[1:])
        return total

    @staticmethod
    def working_bytes(shapes: Shapes) -> int:
        """Memory that each primitive takes beside that while `of_scene` makes the raw tensors, one after the other.

        Tensors whose raw values are the scene's are only copied.
        """
        widths = [prod(shape[1:]) for name, shape in shapes.items() if name in _ACTIVATIONS]
        return _WORKING_COPIES * _FLOAT_BYTES * max(widths, default=0)

    @property
    def values(self) -> dict[str, torch.Tensor]:
        """The scene, as an engine takes it; it changes with the next step."""
        return {name: parameter.value for name, parameter in self.by_name.items()}

    @property
    def wanted(self) -> tuple[str, ...]:
        """The tensors that gradients are needed of."""
        return tuple(name for name, parameter in self.by_name.items() if parameter.first is not None)

    @property
    def count(self) -> int:
        """Primitives."""
        return int(next(iter(self.by_name.values())).raw.shape[0])

    def activate(self) -> None:
        """Compute the values from the raw tensors, which have changed otherwise than by a step."""
        for name, parameter in self.by_name.items():
            if parameter.activation == "identity":
                parameter.value = parameter.raw
            else:
                parameter.value = parameter.raw.exp() if parameter.activation == "exp" else parameter.raw.sigmoid()
            self.by_name[name] = parameter

    def copied(self) -> Parameters:
        """The same values in tensors of their own."""
        return Parameters(
            {
                name: Parameter.of(name, {part: tensor.clone() for part, tensor in parameter.tensors.items()})
                for name, parameter in self.by_name.items()
            }
        )

    def prepared_step(
        self, gradients: Tensors, optimizer: Optimizer, step: int, rows: torch.Tensor | None
    ) -> training.PreparedStep:
        """A step of Adam that is still to be run; `step` counts from 0, `rows` take part, None: all."""
        groups = {name: self._group(name, gradients[name], optimizer, step, rows) for name in self.wanted}
        return training.prepare_adam(groups, betas=optimizer.betas, epsilon=optimizer.epsilon, step=step + 1)

    def _group(
        self, name: str, gradient: torch.Tensor, optimizer: Optimizer, step: int, rows: torch.Tensor | None
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
            # Of the constant harmonic: the first numbers of each row.
            head=int(parameter.raw.shape[-1]) if len(rates) > 1 else 0,
            head_learning_rate=rates[0],
            rows=rows,
        )


def _begun(value: torch.Tensor, activation: str) -> dict[str, torch.Tensor]:
    """The raw tensor whose activation is `value`, and that activation, if it is another."""
    if activation == "exp":
        raw = value.clamp_min(_LEAST_LENGTH).log()
        return {"raw": raw, "value": raw.exp()}
    if activation == "sigmoid":
        raw = value.double().clamp(_LEAST_SHARE, 1.0 - _LEAST_SHARE).logit().float()
        return {"raw": raw, "value": raw.sigmoid()}
    return {"raw": value.clone(memory_format=torch.contiguous_format)}
