"""Mode 1 has no gradients: asking for them is an error, not silence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def refuse_backward(hits: torch.Tensor, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """`hits`, as if it depended on `inputs`, so that backward is reached and raises."""
    passed: torch.Tensor = RefuseBackward.apply(hits, *inputs)  # type: ignore[no-untyped-call]
    return passed


class RefuseBackward(torch.autograd.Function):
    """Passes a tensor through and raises in backward."""

    @staticmethod
    def forward(ctx: Any, hits: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
        """Returns `hits`; `inputs` are what it would have gradients for."""
        return hits.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Raises ValueError, as the original."""
        raise ValueError("mode 1 counts hits, which has no gradient; render with mode=0 for backward")
