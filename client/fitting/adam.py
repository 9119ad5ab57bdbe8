"""Adam on arrays in this process, for steps that are made here."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from lumigrad.client.named_arrays import Array

_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-15


@dataclass
class Adam:
    """The moments of one parameter (Kingma and Ba, "Adam", 2015), with the epsilon of Kerbl et al. (2023).

    Attributes:
        first: running mean of the gradient, shaped as the parameter, float32.
        second: that of its square.
        steps: that were made.
    """

    first: Array
    second: Array
    steps: int = field(default=0)

    @staticmethod
    def of(parameter: Array) -> Adam:
        """Moments of nothing yet."""
        return Adam(np.zeros_like(parameter), np.zeros_like(parameter))

    def step(self, parameter: Array, gradient: Array, rate: float | Array) -> None:
        """Changes the parameter in place; `rate` may be an array that broadcasts to it."""
        self.steps += 1
        self.first += (1 - _BETA1) * (gradient - self.first)
        self.second += (1 - _BETA2) * (gradient * gradient - self.second)
        size = np.sqrt(self.second / np.float32(1 - _BETA2**self.steps)) + np.float32(_EPSILON)
        parameter -= np.asarray(rate, np.float32) / np.float32(1 - _BETA1**self.steps) * self.first / size

    def forget(self, rows: Array) -> None:
        """Begins anew for some rows."""
        self.first[rows] = 0
        self.second[rows] = 0

    def grow(self, count: int) -> None:
        """Adds so many rows of nothing yet."""
        rest = np.zeros((count, *self.first.shape[1:]), self.first.dtype)
        self.first, self.second = np.concatenate([self.first, rest]), np.concatenate([self.second, rest])
