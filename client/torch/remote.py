"""The autograd function for computations on a worker, shared by all engines, and checks of tensors."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch.autograd import forward_ad

from lumigrad.client.base.arrays import refuse_masks
from lumigrad.client.errors import InvalidArgument, LumigradError
from lumigrad.client.operators.call import RemoteCall, refuse_scene


def refuse_backward(result: torch.Tensor, inputs: Sequence[torch.Tensor], error: Exception) -> torch.Tensor:
    """Returns `result` as if it depended on `inputs`, so that its backward raises `error`."""
    passed: torch.Tensor = RefuseBackward.apply(error, result, *inputs)  # type: ignore[no-untyped-call]
    return passed


class RefuseBackward(torch.autograd.Function):
    """Returns a tensor unchanged and raises an error in backward."""

    @staticmethod
    def forward(ctx: Any, error: Exception, result: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
        """Returns `result`; `inputs` are the tensors whose gradients would be requested."""
        ctx.error = error
        return result.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Raises the error that was passed to `forward`."""
        raise ctx.error


def on_host(name: str, value: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Copies `value` to the CPU; autograd converts the gradient back to its type and device.

    Tensors in lists get gradients, too.
    """
    refuse_scene(name, value)
    try:
        refuse_masks(name, value)
        # PyTorch warns about read-only arrays, and moves tensors to the default device of the program.
        is_fixed = isinstance(value, np.ndarray) and not value.flags.writeable
        given = value.copy() if is_fixed else _stacked(value)
        tensor = given if isinstance(given, torch.Tensor) else torch.as_tensor(given, device="cpu")
        if _has_tangent(tensor):
            raise _transformed(name, "a plain tensor, got one with a tangent of forward-mode differentiation")
        if tensor.is_complex():
            # Imaginary parts would be lost.
            raise InvalidArgument.of(name, f"expected real numbers, got {tensor.dtype}; pass the real part")
        if tensor.is_meta:
            raise InvalidArgument.of(name, "expected a tensor with values, got one on the device meta, which has none")
        if tensor.layout != torch.strided:
            raise InvalidArgument.of(name, f"expected a dense tensor, got {tensor.layout}; call to_dense()")
        # NumPy has no lazy negation, such as that of the imaginary part of a conjugate.
        return tensor.to("cpu", dtype).resolve_neg()
    except InvalidArgument:
        raise
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidArgument.of(name, f"expected a tensor, got {type(value).__name__} ({error})") from error


def number_on_host(name: str, value: torch.Tensor) -> torch.Tensor:
    """Copies a tensor of one element to the CPU as `on_host` does, without axes."""
    if value.numel() != 1:
        raise InvalidArgument.of(name, f"expected one number, got shape {list(value.shape)}")
    return on_host(name, value).reshape(())


def _stacked(value: Any) -> Any:
    """Returns lists with tensors as one tensor, which is part of their graph; torch.as_tensor would detach them."""
    if not isinstance(value, list | tuple):
        return value
    parts = [_stacked(part) for part in value]
    if not any(isinstance(part, torch.Tensor) for part in parts):
        return parts
    # Numbers beside tensors keep their digits as float64.
    return torch.stack(
        [p.cpu() if isinstance(p, torch.Tensor) else torch.tensor(p, dtype=torch.float64, device="cpu") for p in parts]
    )


def _has_tangent(tensor: torch.Tensor) -> bool:
    return forward_ad.unpack_dual(tensor).tangent is not None  # type: ignore[no-untyped-call]


P = ParamSpec("P")
R = TypeVar("R")
_NO_SECOND = (
    "second derivatives are not computed: the gradients that a worker returns cannot be differentiated again; leave "
    "create_graph=True out, or call detach() on them"
)

# Modes of dispatch in which torch.export and make_fx record programs.
_RECORDING = torch._C._TorchDispatchModeKey.PROXY, torch._C._TorchDispatchModeKey.FAKE
Gradients = tuple[torch.Tensor | None, ...]


def full_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Excludes `function` from autocast, which would round pixels and poses to bfloat16 in products of matrices."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        # Nested contexts, since torch.compile traces them, but no ExitStack.
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                with torch.autocast(kind, enabled=False):
                    return call(*args, **kwargs)
        return function(*args, **kwargs)

    return call


def outside_graphs(function: Callable[P, R]) -> Callable[P, R]:
    """Excludes `function` from `torch.compile`: it runs eagerly, and the graph breaks around it.

    Inside torch.func it raises InvalidArgument, which names a transformed tensor if there is one. It is refused inside
    torch.jit.trace and the like, and unaffected by autocast.
    """
    disabled: list[Callable[P, R]] = []

    @functools.wraps(function)
    @full_precision
    def whole(*args: P.args, **kwargs: P.kwargs) -> R:
        recording = any(torch._C._get_dispatch_mode(kind) is not None for kind in _RECORDING)
        if recording or torch._C._get_tracing_state() is not None:
            text = "expected a call outside of torch.jit.trace, torch.export and make_fx, got one inside"
            advice = "the recorded program would return these results for any input; use torch.compile"
            raise InvalidArgument.of(function.__name__, f"{text}: {advice}")
        return function(*args, **kwargs)

    @functools.wraps(function)
    def entry(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch._C._functorch.peek_interpreter_stack() is not None:
            given = inspect.signature(function).bind(*args, **kwargs).arguments
            for name, value in given.items():
                if any(map(_is_wrapped, value if isinstance(value, tuple | list) else (value,))):
                    raise _transformed(name, "a plain tensor, got one inside of torch.func")
            raise _transformed(function.__name__, "a call outside of torch.func, got one inside")
        # Importing the compiler takes as long as importing torch; in programs that compile it is already imported.
        if "torch._dynamo" not in sys.modules:
            return whole(*args, **kwargs)
        if not disabled:
            disabled.append(torch.compiler.disable(whole))  # type: ignore[no-untyped-call]
        return disabled[0](*args, **kwargs)

    return entry


def _is_wrapped(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(value)


def _transformed(name: str, expected: str) -> InvalidArgument:
    return InvalidArgument.of(
        name,
        f"expected {expected}; a worker computes gradients in reverse mode: call backward(), torch.autograd.grad or "
        "torch.autograd.functional.jacobian, and instead of vmap pass leading sizes, where the function has them, or "
        "call it several times",
    )


def is_last_pass() -> bool:
    """Whether the current backward pass frees its graph, so that no later pass can need the forward state.

    Returns False if this version of PyTorch does not report it; the state is then released with the graph.
    """
    keeps_graph = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True)
    return not keeps_graph()


def first_order(backward: Callable[..., Gradients]) -> Callable[..., Gradients]:
    """Wraps a `backward` so that differentiating its results raises an error, since there are no second derivatives."""

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


# Tensors by the names of inputs; None for absent inputs.
Tensors = Mapping[str, torch.Tensor | None]
# Takes the gradients of outputs, the names of the inputs to differentiate, and whether the worker may release the
# forward state. Returns the inputs' gradients, arrays or tensors with as many values; missing names have no gradient.
Differentiate = Callable[[dict[str, torch.Tensor], tuple[str, ...], bool], Mapping[str, Any]]


def compute(call: RemoteCall, inputs: Tensors) -> dict[str, torch.Tensor]:
    """Runs a call on CPU tensors; returns its outputs by name, on the CPU, in the autograd graph."""
    result = run(call, inputs)
    outputs = {name: torch.from_numpy(result[name]) for name in call.outputs}
    return attach(outputs, inputs, partial(call.gradients, result), call.differentiable)


def run(call: RemoteCall, inputs: Tensors) -> Any:
    """Runs a call without a graph; the worker keeps the forward state if an input requires a gradient.

    Raises:
        InvalidArgument: an input that has no gradient requires one. Raised here because the traceback of the backward
            pass would not show the cause.
    """
    for name in sorted(call.without_gradient):
        if requires_gradient([inputs[name]]):
            raise InvalidArgument.of(
                name,
                "expected a tensor that requires no gradient, since there is none for it with "
                f'semantics="{call.settings.semantics}", got one that does; pass semantics="exact" or {name}.detach()',
            )
    retain = not call.differentiable.isdisjoint(call.outputs) and requires_gradient(inputs.values())
    return call.run(
        {name: None if tensor is None else tensor.detach().numpy() for name, tensor in inputs.items()}, retain
    )


def requires_gradient(tensors: Iterable[Any]) -> bool:
    """Whether autograd records operations on any of these; values that are not tensors are skipped."""
    return torch.is_grad_enabled() and any(isinstance(each, torch.Tensor) and each.requires_grad for each in tensors)


def refuse_gradients(**given: Any) -> None:
    """Raises InvalidArgument for tensors that require a gradient where only their values are used."""
    for name, value in given.items():
        if requires_gradient([value]):
            text = "expected a number or a tensor that requires no gradient, since there is none for it"
            raise InvalidArgument.of(name, f"{text}, got one that does; pass {name}.detach()")


def attach(
    outputs: Mapping[str, torch.Tensor],
    inputs: Tensors,
    differentiate: Differentiate,
    differentiable: Iterable[str] | None = None,
) -> dict[str, torch.Tensor]:
    """Connects computed outputs to their inputs by one node of the autograd graph.

    The backward pass calls `differentiate` with the existing gradients of outputs and the names of the inputs that need
    a gradient, if any. Gradients flow through the `differentiable` outputs; None: all.
    """
    fixed = [] if differentiable is None else sorted(set(outputs) - set(differentiable))
    results = RemoteFunction.apply(outputs, fixed, differentiate, tuple(inputs), *inputs.values())  # type: ignore[no-untyped-call]
    return dict(zip(outputs, results, strict=True))


class RemoteFunction(torch.autograd.Function):
    """Results of a worker; the backward pass requests only the gradients that are needed."""

    @staticmethod
    def forward(
        ctx: Any,
        outputs: Mapping[str, torch.Tensor],
        fixed: Iterable[str],
        differentiate: Differentiate,
        names: tuple[str, ...],
        *inputs: torch.Tensor | None,
    ) -> tuple[torch.Tensor, ...]:
        """Returns the outputs, of which those in `fixed` have no gradient; `names` name the inputs. See `attach`."""
        ctx.differentiate, ctx.names, ctx.outputs = differentiate, names, tuple(outputs)
        ctx.kinds = [None if tensor is None else (tensor.shape, tensor.dtype) for tensor in inputs]
        # Saved only so that autograd detects in-place changes before backward.
        ctx.save_for_backward(*(tensor for tensor in inputs if tensor is not None))
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(outputs[name] for name in fixed))
        return tuple(outputs.values())

    @staticmethod
    @outside_graphs
    @first_order
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """Returns the gradients of the inputs that require one, with the inputs' shapes and types."""
        _ = ctx.saved_tensors
        upstream = {name: value for name, value in zip(ctx.outputs, gradients, strict=True) if value is not None}
        for name, value in upstream.items():
            if torch._C._functorch.is_legacy_batchedtensor(value):
                raise _transformed(name, "a plain gradient, got one of is_grads_batched=True or vectorize=True")
        needed = ctx.needs_input_grad[-len(ctx.names) :]
        wanted = tuple(name for name, need in zip(ctx.names, needed, strict=True) if need)
        found = ctx.differentiate(upstream, wanted, is_last_pass()) if upstream and wanted else {}
        of_inputs = (
            _like(found[name], *kind) if name in wanted and name in found else None
            for name, kind in zip(ctx.names, ctx.kinds, strict=True)
        )
        return None, None, None, None, *of_inputs


def _like(value: Any, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    gradient = value if isinstance(value, torch.Tensor) else torch.as_tensor(value, device="cpu")
    return gradient.reshape(shape).to(dtype)
