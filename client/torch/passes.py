"""Backward passes of autograd: whether another one can come, and that there is none through their results."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from lumigrad.client.errors import LumigradError
from lumigrad.client.torch.refusal import refuse_backward

_NO_SECOND = (
    "second derivatives are not computed: the gradients that a worker returns cannot be differentiated again; leave "
    "create_graph=True out, or call detach() on them"
)

Gradients = tuple[torch.Tensor | None, ...]


def is_last_pass() -> bool:
    """Whether the backward pass under way frees its graph, so that no other one can need the forward state.

    Where this version of PyTorch does not tell, the state is released when the graph has gone.
    """
    keeps_graph = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True)
    return not keeps_graph()


def first_order(backward: Callable[..., Gradients]) -> Callable[..., Gradients]:
    """Has whoever differentiates the results of a function's `backward` told that there is no such derivative."""

    @wraps(backward)
    def call(ctx: Any, *gradients: torch.Tensor | None) -> Gradients:
        with torch.no_grad():
            found = backward(ctx, *gradients)
        if not torch.is_grad_enabled():
            return found
        causes = [tensor for tensor in (*ctx.saved_tensors, *gradients) if tensor is not None and tensor.requires_grad]
        error = LumigradError(_NO_SECOND)
        return tuple(None if result is None else refuse_backward(result, causes, error) for result in found)

    return call
