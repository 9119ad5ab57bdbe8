"""Makes calls to a worker differentiable JAX functions, and keeps forward states for their backward passes."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections import OrderedDict
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from lumigrad.client.base.arrays import Array
from lumigrad.client.distances.answer import Distances
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.jax.host import is_divided, on_host
from lumigrad.client.operators.call import RemoteCall
from lumigrad.client.rendering.frame import Frame
from lumigrad.client.workers.result import forget_values

Inputs = dict[str, Any]
Result = Frame | Distances

# Limit of the forward states that one call in compiled code keeps, since it may never run backward.
_MOST = 1024


class Passes:
    """Keeps the results of one call's forward passes until backward passes take them, and the inputs to differentiate.

    Compiled code may run a call many times, from several threads, before it runs backward.
    """

    def __init__(self) -> None:
        # The inputs to differentiate in any use of the call. A use's forward pass is traced before its backward pass,
        # but cannot tell it which inputs it needs, because the residuals of all uses share one structure.
        self.wanted: set[str] = set()
        self._lock = threading.Lock()
        self._results: OrderedDict[int, Result] = OrderedDict()
        self._next = 0

    def put(self, result: Result) -> int:
        """Keeps a result without its arrays; returns its number, which fits into int32."""
        forget_values(result)
        with self._lock:
            self._next = (self._next + 1) % (1 << 31)
            self._results[self._next] = result
            if len(self._results) > _MOST:
                self._results.popitem(last=False)
            return self._next

    def take(self, number: int) -> Result | None:
        """Removes and returns the result with this number; returns None if it was already taken or dropped."""
        with self._lock:
            return self._results.pop(number, None)


class JaxCall(RemoteCall):
    """A computation whose inputs are JAX arrays."""

    @abstractmethod
    def shapes(self, inputs: Inputs) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of the outputs; only the shapes of the inputs are known."""


def compute(call: JaxCall, inputs: Inputs) -> dict[str, jax.Array]:
    """Runs a call and returns its outputs by name, float32, differentiable in reverse mode. Absent inputs are None."""
    given = _unified(
        {name: None if value is None else jnp.asarray(value, jnp.float32) for name, value in inputs.items()}
    )
    # There is one function per call: JAX keeps it, with the call and its passes, as long as its derivative or the code
    # that contains it, and compiles nothing else.
    passes = Passes()
    remote = jax.custom_vjp(partial(_remote, call))
    # Symbolic zeros show which gradients are not needed, so that the worker does not compute them.
    remote.defvjp(partial(_forward, call, passes), partial(_backward, call, passes), symbolic_zeros=True)
    return {
        name: value if name in call.differentiable else jax.lax.stop_gradient(value)
        for name, value in remote(given).items()
    }


def _unified(inputs: Inputs) -> Inputs:
    """Makes all inputs vary over the axes of jax.shard_map over which one does, as JAX does for its own functions.

    Otherwise the gradient of an input that all devices share would be that of the first device, not the sum.
    """
    if not is_divided():
        return inputs
    # A sum of nothing varies like its operand. JAX's functions for this have other names in each version.
    zero = sum(jnp.ravel(value)[:0].sum() for value in inputs.values() if value is not None)
    zero = jax.lax.stop_gradient(zero)
    return {name: None if value is None else value + zero for name, value in inputs.items()}


def _remote(call: JaxCall, inputs: Inputs) -> dict[str, Any]:
    found: dict[str, Any] = on_host(partial(_run, call), _expected(call, inputs), inputs)
    return found


def _forward(call: JaxCall, passes: Passes, inputs: Inputs) -> tuple[dict[str, Any], Any]:
    values = {name: None if given is None else given.value for name, given in inputs.items()}
    wanted = {name for name, given in inputs.items() if given is not None and given.perturbed}
    for name in sorted(wanted & call.without_gradient):
        raise InvalidArgument.of(
            name,
            "expected an argument that is not differentiated, since it has no gradient with "
            f'semantics="{call.settings.semantics}"; pass semantics="exact" or jax.lax.stop_gradient({name})',
        )
    passes.wanted |= wanted
    expected = (_expected(call, values), _array((), jnp.int32))
    plain = partial(_run, call)
    outputs, number = on_host(partial(_run_and_keep, call, passes), expected, values, plain=plain)
    return outputs, (values, number)


def _backward(call: JaxCall, passes: Passes, residuals: Any, cotangents: dict[str, Any]) -> tuple[Inputs]:
    values, number = residuals
    wanted = tuple(sorted(passes.wanted))
    upstream = {
        name: value
        for name, value in cotangents.items()
        if name in call.differentiable and not isinstance(value, SymbolicZero)
    }
    found: dict[str, Any] = {}
    if upstream and wanted:
        expected = {name: _array(values[name].shape) for name in wanted}
        found = on_host(partial(_differentiate, call, passes, wanted), expected, values, number, upstream)
    # None stands for zeros.
    return ({name: found.get(name) for name in values},)


def _expected(call: JaxCall, inputs: Inputs) -> dict[str, jax.ShapeDtypeStruct]:
    return {name: _array(shape) for name, shape in call.shapes(inputs).items()}


def _array(shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]


def _run(call: JaxCall, inputs: Inputs) -> dict[str, Array]:
    return _arrays(call, call.run(inputs, False))


def _run_and_keep(call: JaxCall, passes: Passes, inputs: Inputs) -> tuple[dict[str, Array], Array]:
    result = call.run(inputs, True)
    return _arrays(call, result), np.array(passes.put(result), np.int32)


def _differentiate(
    call: JaxCall, passes: Passes, wanted: tuple[str, ...], inputs: Inputs, number: Any, upstream: dict[str, Any]
) -> dict[str, Array]:
    result = passes.take(int(number))
    if result is None:
        # The result was dropped, or taken by an earlier run of this backward pass, which JAX may repeat: recompute it.
        result = call.run(inputs, True)
    else:
        result.request = call.request(inputs)
    found = call.gradients(result, upstream, wanted, True)
    return {name: np.asarray(found[name], np.float32).reshape(np.shape(inputs[name])) for name in wanted}


def _arrays(call: JaxCall, result: Result) -> dict[str, Array]:
    return {name: np.asarray(result[name], np.float32) for name in call.outputs}
