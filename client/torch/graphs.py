"""The graphs of autograd and of torch.compile around calls of a worker."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

from lumigrad.client.errors import LumigradError
from lumigrad.client.torch.refusal import refuse_backward

P = ParamSpec("P")
R = TypeVar("R")
_NO_SECOND = (
    "second derivatives are not computed: the gradients that a worker returns cannot be differentiated again; leave "
    "create_graph=True out, or call detach() on them"
)

Gradients = tuple[torch.Tensor | None, ...]


def outside_graphs(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, which `torch.compile` runs as it is: graphs end before it and begin anew after it."""
    disabled: list[Callable[P, R]] = []

    @functools.wraps(function)
    def entry(*args: P.args, **kwargs: P.kwargs) -> R:
        # Importing the compiler takes as long as importing torch; who compiles has imported it.
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        if not disabled:
            disabled.append(torch.compiler.disable(function))  # type: ignore[no-untyped-call]
        return disabled[0](*args, **kwargs)

    return entry


def is_last_pass() -> bool:
    """Whether the backward pass under way frees its graph, so that no other one can need the forward state.

    Where this version of PyTorch does not tell, the state is released when the graph has gone.
    """
    keeps_graph = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True)
    return not keeps_graph()


def first_order(backward: Callable[..., Gradients]) -> Callable[..., Gradients]:
    """Has whoever differentiates the results of a function's `backward` told that there is no such derivative."""

    @functools.wraps(backward)
    def call(ctx: Any, *gradients: torch.Tensor | None) -> Gradients:
        with torch.no_grad():
            found = backward(ctx, *gradients)
        if not torch.is_grad_enabled():
            return found
        causes = [tensor for tensor in (*ctx.saved_tensors, *gradients) if tensor is not None and tensor.requires_grad]
        error = LumigradError(_NO_SECOND)
        return tuple(None if result is None else refuse_backward(result, causes, error) for result in found)

    return call
