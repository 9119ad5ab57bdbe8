"""Learning rates: which parameters are optimised, and how fast at which step."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import isfinite

from lumigrad.server.limits import require
from lumigrad.v1 import training_pb2

_BETA1 = 0.9
_BETA2 = 0.999
_EPSILON = 1e-15


@dataclass(frozen=True)
class Rate:
    """One learning rate: `initial` falls, or rises, log-linearly to `final` within `steps`."""

    initial: float
    final: float
    steps: int

    @staticmethod
    def of(message: training_pb2.Rate, field: str) -> Rate:
        """Check what a request says."""
        require(_is_size(message.initial), f"{field}.initial", "a finite rate >= 0", message.initial)
        require(_is_size(message.final), f"{field}.final", "a finite rate >= 0", message.final)
        falls = message.final > 0
        require(not falls or message.initial > 0, f"{field}.initial", "a rate > 0 with a final one", message.initial)
        require(not falls or message.steps > 0, f"{field}.steps", "at least 1 with a final rate", message.steps)
        return Rate(message.initial, message.final, message.steps)

    def at(self, step: int) -> float:
        """The rate of a step, counted from 0."""
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

    @staticmethod
    def of(message: training_pb2.Optimizer, known: Collection[str], field: str) -> Optimizer:
        """Check what a request says; `known` are the names of all parameters that there are."""
        for name in message.rates:
            require(name in known, f"{field}.rates", f"names out of {', '.join(known)}", name)
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
