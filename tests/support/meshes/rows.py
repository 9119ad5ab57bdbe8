"""The rows of a case: its spheres in order, their neighbours in time, and the obstacles of their environments."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from support.meshes.case import MeshCase


@dataclass(frozen=True)
class Rows:
    """N = B H S rows; `before` and `after` [N] are the numbers of neighbours in time, -1 where there is none."""

    on: Tensor
    environment: Tensor
    before: Tensor
    after: Tensor

    @staticmethod
    def of(case: MeshCase) -> Rows:
        """Neighbours are included even if they are disabled."""
        batches, horizon, count = case.shape
        number = torch.arange(batches * horizon * count).reshape(batches, horizon, count)
        before, after = torch.full_like(number, -1), torch.full_like(number, -1)
        before[:, 1:], after[:, :-1] = number[:, :-1], number[:, 1:]
        environment = torch.from_numpy(np.asarray(case.environment_of)).long()
        return Rows(
            on=torch.from_numpy(case.spheres[..., 3] >= 0).flatten(),
            environment=environment[:, None, None].expand(batches, horizon, count).flatten(),
            before=before.flatten(),
            after=after.flatten(),
        )

    def meeting(self, environment: int) -> Tensor:
        """The rows that are enabled and in this environment: [K]."""
        return torch.nonzero(self.on & (self.environment == environment)).flatten()


def cost_of(depth: Tensor, activation: float) -> Tensor:
    """The cost of a depth (spec section 4); differentiable."""
    if activation <= 0:
        return depth.clamp_min(0)
    curved = depth.clamp(0, activation) ** 2 / (2 * activation)
    return torch.where(depth > activation, depth - activation / 2, curved)
