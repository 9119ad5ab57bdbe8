"""gsplat's `SelectiveAdam` (`gsplat.optimizers`) in plain torch."""

from __future__ import annotations

from typing import Any

import torch

from lumigrad.client.compat.gsplat.options import GsplatArgumentError


class SelectiveAdam(torch.optim.Adam):
    """Adam that steps only the rows of visible Gaussians, without bias correction.

    Follows Mallick et al., "Taming 3DGS", 2024.
    """

    def __init__(self, params: Any, eps: float, betas: tuple[float, float]) -> None:
        """Stores the settings; learning rates are those of the groups, by default 1e-3.

        Args:
            params: tensors [N, ...], or groups of them.
            eps: added to the root of the second average.
            betas: decays of the averages of gradients and of their squares.
        """
        super().__init__(params=params, eps=eps, betas=betas)

    @torch.no_grad()
    def step(self, visibility: torch.Tensor) -> None:  # type: ignore[override]
        """Steps the rows where `visibility` [N] is not 0; other rows keep their values and averages.

        Raises:
            GsplatArgumentError: `visibility` has another number of values than a parameter has rows.
        """
        rows = visibility.reshape(-1).bool().nonzero().flatten()
        for group in self.param_groups:
            (first, second), rate, eps = group["betas"], group["lr"], group["eps"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if visibility.numel() != len(parameter):
                    text = f"expected a value for each of the {len(parameter)} rows of a parameter, got shape"
                    raise GsplatArgumentError.of("visibility", f"{text} {list(visibility.shape)}")
                state = self.state[parameter]
                if not state:
                    state["step"] = torch.tensor(0.0)
                    state |= {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
                gradient = parameter.grad.to_dense()[rows]
                mean = state["exp_avg"][rows].lerp_(gradient, 1 - first)
                square = state["exp_avg_sq"][rows].lerp_(gradient.square(), 1 - second)
                state["exp_avg"][rows], state["exp_avg_sq"][rows] = mean, square
                parameter[rows] -= rate * mean / (square.sqrt() + eps)
