"""Calls to a worker from JAX: checks of arrays, host callbacks, and forward states kept for backward passes."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.experimental.buffer_callback import buffer_callback

from lumigrad.client.base.arrays import Array, check_shape, shape_text
from lumigrad.client.distances.answer import Distances
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.operators.call import RemoteCall, refuse_scene
from lumigrad.client.rendering.frame import Frame
from lumigrad.client.rendering.request import channels_of
from lumigrad.client.values.handle import SceneHandle


def on_host(function: Callable[..., Any], expected: Any, *arguments: Any) -> Any:
    """Calls a function of NumPy arrays on the host from compiled code; under vmap once for each element.

    On the CPU `jax.pure_callback` passes JAX arrays, which are copied by threads of a pool whose threads may all be
    waiting in such callbacks: a deadlock. On the CPU the function therefore gets the memory of the compiled code.

    Args:
        function: a pure function from pytrees of arrays, which it must not keep, to a pytree of arrays.
        expected: the shapes and types of its results.
        arguments: pytrees of JAX arrays.
    """
    if jax.default_backend() != "cpu":
        return jax.pure_callback(
            lambda *given: function(*_copies(given)), expected, *arguments, vmap_method="sequential"
        )

    def fill(_: Any, results: Any, *given: Any) -> None:
        jax.tree.map(_write, results, function(*_copies(given)))

    return buffer_callback(fill, expected, vmap_method="sequential")(*arguments)


def _copies(given: Any) -> Any:
    """Copies arrays so that they can be kept: compiled code reuses its memory once the callback returns."""
    return jax.tree.map(lambda array: np.array(np.asarray(array)), given)


def _write(target: Any, values: Any) -> None:
    np.asarray(target)[...] = values


T = TypeVar("T")

# Limit of the results kept: a compiled function may run forward and never backward, so the oldest are dropped.
_MOST = 16


class Kept(Generic[T]):
    """Keeps the newest results until each is taken, once. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._results: OrderedDict[int, T] = OrderedDict()
        self._next = 0

    def put(self, result: T) -> int:
        """Keeps a result; returns its number, which fits into int32."""
        with self._lock:
            self._next = (self._next + 1) % (1 << 31)
            self._results[self._next] = result
            if len(self._results) > _MOST:
                self._results.popitem(last=False)
            return self._next

    def take(self, number: int) -> T | None:
        """Removes and returns the result with a number; None if it was taken or dropped."""
        with self._lock:
            return self._results.pop(number, None)


Inputs = dict[str, Any]
Result = Frame | Distances


class JaxCall(RemoteCall):
    """The static arguments of a computation. Equal calls share their compiled code."""

    @abstractmethod
    def shapes(self, inputs: Inputs) -> dict[str, tuple[int, ...]]:
        """The shapes of the outputs, from inputs of which only the shapes are known."""


# Results of forward passes by number, for the backward pass: without them the worker would run the forward pass again.
_kept: Kept[Result] = Kept()


def compute(call: JaxCall, inputs: Inputs) -> dict[str, jax.Array]:
    """Runs a call; returns its outputs by name, float32, differentiable in reverse mode. Absent inputs are None."""
    given = {name: None if value is None else jnp.asarray(value, jnp.float32) for name, value in inputs.items()}
    results = _compiled(call, given)
    return {
        name: value if name in call.differentiable else jax.lax.stop_gradient(value) for name, value in results.items()
    }


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _remote(call: JaxCall, inputs: Inputs) -> dict[str, Any]:
    found: dict[str, Any] = on_host(partial(_run, call), _expected(call, inputs), inputs)
    return found


def _forward(call: JaxCall, inputs: Inputs) -> tuple[dict[str, Any], Any]:
    values = {name: None if given is None else given.value for name, given in inputs.items()}
    wanted = frozenset(name for name, given in inputs.items() if given is not None and given.perturbed)
    for name in sorted(wanted & call.without_gradient):
        raise InvalidArgument.of(
            name,
            "expected an argument that is not differentiated, since it has no gradient with "
            f'semantics="{call.settings.semantics}"; pass semantics="exact" or jax.lax.stop_gradient({name})',
        )
    expected = (_expected(call, values), _array((), jnp.int32))
    outputs, number = on_host(partial(_run_and_keep, call), expected, values)
    # The names of the wanted gradients are known while tracing; dictionary keys are part of the tree structure.
    return outputs, (values, number, dict.fromkeys(sorted(wanted)))


def _backward(call: JaxCall, residuals: Any, cotangents: dict[str, Any]) -> tuple[Inputs]:
    values, number, names = residuals
    wanted = tuple(names)
    upstream = {
        name: value
        for name, value in cotangents.items()
        if name in call.differentiable and not isinstance(value, SymbolicZero)
    }
    found: dict[str, Any] = {}
    if upstream and wanted:
        expected = {name: _array(values[name].shape) for name in wanted}
        found = on_host(partial(_differentiate, call, wanted), expected, values, number, upstream)
    zeros = {name: None if value is None else jnp.zeros_like(value) for name, value in values.items()}
    return ({**zeros, **found},)


# Symbolic zeros show which gradients are not needed, so that the worker does not compute them.
_remote.defvjp(_forward, _backward, symbolic_zeros=True)
# Outside of compiled functions JAX would compile the callback again for each call and keep all the compiled code.
_compiled = jax.jit(_remote, static_argnums=0)


def _expected(call: JaxCall, inputs: Inputs) -> dict[str, jax.ShapeDtypeStruct]:
    return {name: _array(shape) for name, shape in call.shapes(inputs).items()}


def _array(shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]


def _run(call: JaxCall, inputs: Inputs) -> dict[str, Array]:
    return _arrays(call, call.run(inputs, False))


def _run_and_keep(call: JaxCall, inputs: Inputs) -> tuple[dict[str, Array], Array]:
    result = call.run(inputs, True)
    return _arrays(call, result), np.array(_kept.put(result), np.int32)


def _differentiate(
    call: JaxCall, wanted: tuple[str, ...], inputs: Inputs, number: Any, upstream: dict[str, Any]
) -> dict[str, Array]:
    result = _kept.take(int(number))
    # Dropped, or taken by an earlier run of the same backward pass, which JAX may repeat: the result is recomputed.
    if result is None:
        result = call.run(inputs, True)
    found = call.gradients(result, upstream, wanted, True)
    return {name: np.asarray(found[name], np.float32).reshape(np.shape(inputs[name])) for name in wanted}


def _arrays(call: JaxCall, result: Result) -> dict[str, Array]:
    return {name: np.asarray(result[name], np.float32) for name in call.outputs}


def shaped(name: str, value: Any, shape: Sequence[int | str]) -> Any:
    """`value` as a float32 JAX array.

    Args:
        name: the argument's name, for the error.
        value: anything that JAX accepts as an array, tracers included.
        shape: the expected sizes; a string matches any size.

    Raises:
        InvalidArgument: the value is not an array of real numbers, or has another shape.
    """
    refuse_scene(name, value)
    if value is None:
        raise InvalidArgument.of(name, f"expected an array of shape {shape_text(shape)}, got None")
    array = real(name, value)
    check_shape(name, array.shape, shape, "; use jax.vmap")
    return array


def real(name: str, value: Any) -> Any:
    """`value` as a float32 JAX array of any shape; raises InvalidArgument unless it is an array of real numbers."""
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError) as error:
        raise InvalidArgument.of(name, f"expected an array, got {type(value).__name__} ({error})") from error
    if array.dtype.kind == "c":
        raise InvalidArgument.of(name, f"expected real numbers, got {array.dtype}; pass the real part")
    return array.astype(jnp.float32)


def optional(name: str, value: Any, shape: Sequence[int | str]) -> Any:
    """`shaped`, or None for None."""
    return None if value is None else shaped(name, value, shape)


def stored_channels(scene: SceneHandle | None) -> int:
    """The number of colour channels of a stored scene, which must be known before the call."""
    channels = None if scene is None else channels_of(scene)
    if channels is None:
        raise InvalidArgument.of(
            "scene",
            "expected a handle with a copy of its scene, which tells the number of channels, got one without; pass "
            "what put returned, or Client.get(scene_id, with_tensors=True)",
        )
    return channels
