"""Host functions in JAX: called directly if arrays have values, and through callbacks in compiled code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.experimental.buffer_callback import buffer_callback
from jax.extend.core import ClosedJaxpr, Primitive
from jax.interpreters import ad, batching, mlir, partial_eval
from jax.sharding import NamedSharding, PartitionSpec

from lumigrad.client.base.arrays import Array
from lumigrad.client.errors import LumigradError

# A function from the leaves of the arguments to the leaves of the results.
_Flat = Callable[..., Sequence[Array]]


@dataclass(frozen=True, eq=False)
class _Work:
    """The function to call; `plain`, if given, computes all results but the last, and is used if that is not needed."""

    whole: _Flat
    plain: _Flat | None


def on_host(function: Callable[..., Any], expected: Any, *arguments: Any, plain: Any = None) -> Any:
    """Calls a function of NumPy arrays on the host; under vmap, once for each element.

    If the arguments have values, as outside compiled functions, nothing is compiled, and the function's own errors are
    raised. Compiled code keeps the function alive.

    Args:
        function: a pure function from pytrees of arrays, which it must not keep, to a pytree of arrays.
        expected: the shapes and types of its results.
        arguments: pytrees of JAX arrays, which inside jax.shard_map vary over the same axes.
        plain: the same function without the last leaf of its results, called if that leaf is unused.
    """
    leaves, tree = jax.tree.flatten(arguments)
    shapes, results = jax.tree.flatten(expected)

    def flat(called: Callable[..., Any]) -> _Flat:
        return lambda *values: jax.tree.leaves(called(*jax.tree.unflatten(tree, values)))

    work = _Work(flat(function), None if plain is None else flat(plain))
    kinds = [ShapedArray(each.shape, each.dtype) for each in shapes]
    return jax.tree.unflatten(results, _bind(leaves, work, kinds))


def _bind(leaves: Sequence[Any], work: _Work, expected: Sequence[ShapedArray]) -> list[Any]:
    # JAX 0.7 and later cache the parameters of traced primitives forever, unless a jaxpr is among them: then only until
    # it is collected. Only the traced code refers to this one.
    life = ClosedJaxpr(_NOTHING, ())
    found: list[Any] = _host.bind(*leaves, work=work, expected=tuple(expected), life=life)
    return found


_NOTHING = jax.make_jaxpr(lambda: ())().jaxpr
_host: Any = Primitive("lumigrad_host")
_host.multiple_results = True


def is_divided() -> bool:
    """Whether this code is traced inside jax.shard_map, where values may differ between devices."""
    return bool(getattr(jax.sharding.get_abstract_mesh(), "manual_axes", ()))


def _kinds(*values: Any, expected: Sequence[ShapedArray], **_: Any) -> list[ShapedArray]:
    if not is_divided():
        return list(expected)
    # Results differ between devices if values do, and their types say so.
    like = values[0]
    kinds = []
    for kind in expected:
        spec = PartitionSpec(*[None] * len(kind.shape))  # type: ignore[no-untyped-call]
        whole = NamedSharding(like.sharding.mesh, spec)
        kinds.append(like.update(shape=kind.shape, dtype=kind.dtype, weak_type=False, sharding=whole))
    return kinds


_host.def_abstract_eval(_kinds)


def _now(*values: Any, work: _Work, expected: Sequence[ShapedArray], **_: Any) -> list[jax.Array]:
    results = work.whole(*(np.asarray(value) for value in values))
    # JAX's own functions leave their results on the device on which values were put.
    chosen = (value.devices() for value in values if getattr(value, "committed", False))
    place = next((next(iter(devices)) for devices in chosen if len(devices) == 1), None)
    return [
        jax.device_put(np.asarray(result, kind.dtype), place) for result, kind in zip(results, expected, strict=True)
    ]


_host.def_impl(_now)


def _in_compiled_code(*values: Any, work: _Work, expected: Sequence[ShapedArray], **_: Any) -> Any:
    shapes = [jax.ShapeDtypeStruct(kind.shape, kind.dtype) for kind in expected]  # type: ignore[no-untyped-call]
    return jax.pure_callback(lambda *given: list(work.whole(*_copies(given))), shapes, *values)


def _in_code_of_cpus(*values: Any, work: _Work, expected: Sequence[ShapedArray], **_: Any) -> Any:
    # On the CPU, `jax.pure_callback` passes JAX arrays that a thread pool copies, and all its threads may be waiting in
    # such callbacks: a deadlock. The function therefore reads the memory of the compiled code directly.
    shapes = [jax.ShapeDtypeStruct(kind.shape, kind.dtype) for kind in expected]  # type: ignore[no-untyped-call]

    def fill(_: Any, targets: Sequence[Any], *given: Any) -> None:
        for target, result in zip(targets, work.whole(*_copies(given)), strict=True):
            np.asarray(target)[...] = result

    return buffer_callback(fill, shapes)(*values)


mlir.register_lowering(_host, mlir.lower_fun(_in_compiled_code, multiple_results=True))
mlir.register_lowering(_host, mlir.lower_fun(_in_code_of_cpus, multiple_results=True), platform="cpu")


def _copies(given: Sequence[Any]) -> list[Array]:
    """Copies arrays, because compiled code reuses their memory after the callback, when a call may still send them."""
    return [np.array(np.asarray(array)) for array in given]


def _mapped(
    values: Sequence[Any], axes: Sequence[int | None], *, work: _Work, expected: Sequence[ShapedArray], **_: Any
) -> tuple[list[Any], list[int]]:
    """Makes one call that loops on the host over the elements of the mapped arguments."""
    size = next(value.shape[axis] for value, axis in zip(values, axes, strict=True) if axis is not None)
    first = [value if axis is None else jnp.moveaxis(value, axis, 0) for value, axis in zip(values, axes, strict=True)]

    kinds = [ShapedArray((size, *kind.shape), kind.dtype) for kind in expected]

    def each(called: _Flat, of_these: Sequence[ShapedArray]) -> _Flat:
        def loop(*given: Array) -> Sequence[Array]:
            columns: list[Array] = [np.empty(kind.shape, kind.dtype) for kind in of_these]
            for k in range(size):
                row = called(*(value if axis is None else value[k] for value, axis in zip(given, axes, strict=True)))
                for column, value in zip(columns, row, strict=True):
                    column[k] = value
            return columns

        return loop

    several = _Work(each(work.whole, kinds), None if work.plain is None else each(work.plain, kinds[:-1]))
    return _bind(first, several, kinds), [0] * len(kinds)


batching.primitive_batchers[_host] = _mapped


def _without_unused(used: Sequence[bool], equation: Any) -> tuple[list[bool], Any]:
    """Removes a call whose results are all unused; calls `plain` instead if only the last result is unused."""
    inputs, work = len(equation.invars), equation.params["work"]
    if not any(used):
        return [False] * inputs, None
    if not used[-1] and work.plain is not None:
        plain = {"work": replace(work, whole=work.plain, plain=None), "expected": equation.params["expected"][:-1]}
        equation = equation.replace(outvars=equation.outvars[:-1], params={**equation.params, **plain})
    return [True] * inputs, equation


partial_eval.dce_rules[_host] = _without_unused


def _refuse(*_: Any, **__: Any) -> Any:
    raise LumigradError(
        "second derivatives are not computed: the gradients that a worker returns cannot be differentiated again; "
        "apply jax.lax.stop_gradient to them, or leave jax.hessian and grad of grad out"
    )


ad.primitive_jvps[_host] = _refuse
