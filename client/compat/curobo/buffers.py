"""The buffers that callers own and queries write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from lumigrad.client.compat.curobo.errors import CuroboArgumentError


@dataclass(frozen=True)
class Buffers:
    """What one query writes; any device, kept from call to call.

    Attributes:
        cost: (b, h, n).
        gradient: (b, h, n, 4), whose last column, that of radii, is left as it is.
        sparsity: (b, h, n), 1 where the cost is not 0; None: nobody asks.
    """

    cost: torch.Tensor
    gradient: torch.Tensor
    sparsity: torch.Tensor | None

    def check(self, spheres: torch.Tensor) -> None:
        """Raises CuroboArgumentError unless they fit the spheres (b, h, n, 4)."""
        if not isinstance(spheres, torch.Tensor) or spheres.ndim != 4 or spheres.shape[-1] != 4:
            raise CuroboArgumentError.of("query_spheres", f"expected a tensor [b, h, n, 4], got {_kind(spheres)}")
        rows = spheres.shape[:3]
        expected = {"out_cost": (self.cost, rows), "out_grad": (self.gradient, spheres.shape)}
        if self.sparsity is not None:
            expected["sparsity_idx"] = (self.sparsity, rows)
        for name, (buffer, shape) in expected.items():
            if not isinstance(buffer, torch.Tensor) or buffer.shape != shape:
                raise CuroboArgumentError.of(name, f"expected a tensor of shape {list(shape)}, got {_kind(buffer)}")

    def write(self, cost: torch.Tensor, gradient: torch.Tensor | None) -> None:
        """Stores all of a result, zeros included, whatever was there before."""
        self.cost.copy_(cost)
        if gradient is not None:
            self.gradient[..., :3].copy_(gradient[..., :3])
        if self.sparsity is not None:
            self.sparsity.copy_(cost != 0)


def _kind(value: Any) -> str:
    return f"shape {list(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
