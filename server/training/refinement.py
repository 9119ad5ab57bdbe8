"""Values per view that are optimised beside the scene: each view has steps of its own, made when it is rendered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from lumigrad.kernels import training
from lumigrad.server.training.rates import Optimizer


class Refinement:
    """One tensor with a row per view, its moments, and how many steps each row has made."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values
        self._first = torch.zeros_like(values)
        self._second = torch.zeros_like(values)
        self._steps = torch.zeros(len(values), dtype=torch.int64)

    @staticmethod
    def row_bytes(width: int) -> int:
        """Memory that each view takes, of so many values: those, their moments, and the number of steps."""
        return 3 * 4 * width + 8

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """What makes it up, by name."""
        return {"values": self.values, "first": self._first, "second": self._second, "steps": self._steps}

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take over what `tensors` gave."""
        self.values, self._first, self._second = tensors["values"], tensors["first"], tensors["second"]
        self._steps = tensors["steps"].cpu()

    def stepped(self, views: Sequence[int], gradient: torch.Tensor, rate: float, optimizer: Optimizer) -> Refinement:
        """What a step of Adam for some views makes of it; `gradient` has a row for each of them. This one stays."""
        stepped = Refinement.__new__(Refinement)
        stepped.restore({name: tensor.clone() for name, tensor in self.tensors.items()})
        for row, view in enumerate(views):
            stepped._steps[view] += 1
            parameter = training.Parameter(
                raw=stepped.values[view : view + 1],
                gradient=gradient[row : row + 1].contiguous(),
                first=stepped._first[view : view + 1],
                second=stepped._second[view : view + 1],
                learning_rate=rate,
            )
            number = int(stepped._steps[view])
            training.adam_step({"row": parameter}, betas=optimizer.betas, epsilon=optimizer.epsilon, step=number)
        return stepped

    def clear(self, view: int) -> torch.Tensor:
        """Take a view's values out: what they stood for was applied."""
        taken = self.values[view].clone()
        self.values[view] = 0.0
        return taken
