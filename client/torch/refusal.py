"""Results without a gradient: asking for it is an error, not silence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def refuse_backward(result: torch.Tensor, inputs: Sequence[torch.Tensor], error: Exception) -> torch.Tensor:
    """`result`, as if it depended on `inputs`, so that backward is reached and raises `error`."""
    passed: torch.Tensor = RefuseBackward.apply(error, result, *inputs)  # type: ignore[no-untyped-call]
    return passed


class RefuseBackward(torch.autograd.Function):
    """Passes a tensor through and raises in backward."""

    @staticmethod
    def forward(ctx: Any, error: Exception, result: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
        """Returns `result`; `inputs` are what it would have gradients for."""
        ctx.error = error
        return result.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Raises what the caller chose."""
        raise ctx.error
