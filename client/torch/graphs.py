"""What the operators share: checks of tensors, gradients that are computed once, torch.compile."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import torch

from lumigrad.client.errors import InvalidArgument, LumigradError


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


def on_host(name: str, value: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """`value` on the CPU; autograd brings the gradient back to its type and device."""
    try:
        tensor = torch.as_tensor(value)
        if tensor.is_complex():
            # Their imaginary parts would be lost.
            raise InvalidArgument.of(name, f"expected real numbers, got {tensor.dtype}; pass the real part")
        if tensor.is_meta:
            raise InvalidArgument.of(name, "expected a tensor with values, got one on the device meta, which has none")
        return tensor.to("cpu", dtype)
    except InvalidArgument:
        raise
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidArgument.of(name, f"expected a tensor, got {type(value).__name__} ({error})") from error


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
