"""Gradients of JAX functions in which one call is differentiated with respect to different inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

from lumigrad.client import Client
from support.workers.worker import WorkerProcess

jax = pytest.importorskip("jax", reason="needs the extra jax")

import jax.numpy as jnp  # noqa: E402 - after the helpful skip

from support.calls.jax_losses import SECOND, Arrays, inputs, loss_of, stopped  # noqa: E402


def both(function: Any, first: Arrays, second: Arrays) -> tuple[Arrays, Arrays]:
    return jax.grad(function, (0, 1))(first, second)


def terms(function: Any, first: Arrays, second: Arrays) -> tuple[Arrays, Arrays]:
    return both(lambda a, b: function(a, stopped(b)) + function(stopped(a), b), first, second)


def terms_swapped(function: Any, first: Arrays, second: Arrays) -> tuple[Arrays, Arrays]:
    return both(lambda a, b: function(stopped(a), b) + function(a, stopped(b)), first, second)


def one_then_the_other(function: Any, first: Arrays, second: Arrays) -> tuple[Arrays, Arrays]:
    return jax.grad(function, 0)(first, second), jax.grad(function, 1)(first, second)


def kept_pullbacks(function: Any, first: Arrays, second: Arrays) -> tuple[Arrays, Arrays]:
    _, of_first = jax.vjp(lambda a: function(a, second), first)
    _, of_second = jax.vjp(lambda b: function(first, b), second)
    return of_first(1.0)[0], of_second(1.0)[0]


def kept_pullbacks_in_reverse(function: Any, first: Arrays, second: Arrays) -> tuple[Arrays, Arrays]:
    _, of_first = jax.vjp(lambda a: function(a, second), first)
    _, of_second = jax.vjp(lambda b: function(first, b), second)
    later = of_second(1.0)[0]
    return of_first(1.0)[0], later


def twice_applied(function: Any, first: Arrays, second: Arrays) -> tuple[Arrays, Arrays]:
    _, pullback = jax.vjp(function, first, second)
    pullback(1.0)
    return pullback(1.0)


def checkpoint_after_each(function: Any, first: Arrays, second: Arrays) -> tuple[Arrays, Arrays]:
    one_then_the_other(function, first, second)
    return both(jax.checkpoint(function), first, second)


def checkpoint_of_parts(function: Any, first: Arrays, second: Arrays) -> tuple[Arrays, Arrays]:
    remembered = jax.checkpoint(function)
    return one_then_the_other(remembered, first, second)


def scan(function: Any, first: Arrays, second: Arrays) -> tuple[Arrays, Arrays]:
    def total(a: Arrays, b: Arrays) -> Any:
        step = lambda carry, _: (carry + function(a, stopped(b)) + function(stopped(a), b), None)  # noqa: E731
        return jax.lax.scan(step, 0.0, jnp.arange(2))[0] / 2

    return both(total, first, second)


def scan_of_checkpoints(function: Any, first: Arrays, second: Arrays) -> tuple[Arrays, Arrays]:
    return scan(jax.checkpoint(function), first, second)


def frozen_parts(function: Any, first: Arrays, second: Arrays) -> tuple[Arrays, Arrays]:
    """Each input has a gradient in one term and is fixed in the others."""

    def total(a: Arrays, b: Arrays) -> Any:
        given = {**a, **b}
        value = 0.0
        for name in given:
            of_one = {key: value if key == name else jax.lax.stop_gradient(value) for key, value in given.items()}
            value = value + function({key: of_one[key] for key in a}, {key: of_one[key] for key in b})
        return value

    return both(total, first, second)


def shared_by_compiled_parts(function: Any, first: Arrays, second: Arrays) -> tuple[Arrays, Arrays]:
    return terms(jax.jit(function), first, second)


WAYS = [
    *(terms, terms_swapped, one_then_the_other, kept_pullbacks, kept_pullbacks_in_reverse, twice_applied),
    *(checkpoint_after_each, checkpoint_of_parts, scan, scan_of_checkpoints, frozen_parts, shared_by_compiled_parts),
]


@pytest.fixture(scope="module")
def expected(worker_process: WorkerProcess) -> Iterator[Callable[[str], tuple[Arrays, Arrays]]]:
    """The gradients of a function's loss with respect to both groups of inputs."""
    with Client(worker_process.target) as client:
        yield cache(lambda name: both(loss_of(name, client), *inputs(name)))


@pytest.mark.parametrize("transform", [lambda function: function, jax.jit], ids=["eager", "compiled"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("name", SECOND)
def test_each_input_gets_its_gradient_however_calls_are_differentiated(
    client: Client, name: str, way: Any, transform: Any, expected: Callable[[str], tuple[Arrays, Arrays]]
):
    loss = loss_of(name, client)
    found = transform(lambda a, b: way(loss, a, b))(*inputs(name))
    for of_these, wanted in zip(found, expected(name), strict=True):
        for key, values in wanted.items():
            size = float(jnp.abs(values).max())
            assert size > 0, key
            np.testing.assert_allclose(of_these[key] / size, values / size, atol=1e-5, err_msg=key)
