"""Functions of NumPy arrays called from compiled JAX functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental.buffer_callback import buffer_callback


def on_host(function: Callable[..., Any], expected: Any, *arguments: Any) -> Any:
    """Calls a function of NumPy arrays on the host, whenever the compiled code comes there; under vmap one by one.

    On the CPU `jax.pure_callback` would hand over JAX arrays, which threads copy that may all wait in such callbacks:
    then nothing ever goes on. There the function is given the memory of the compiled code itself.

    Args:
        function: from pytrees of arrays, which it must not keep, to one of arrays; pure.
        expected: the shapes and types of what it returns.
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
    """NumPy arrays that may be kept: the memory of compiled code is used again once the callback returns."""
    return jax.tree.map(lambda array: np.array(np.asarray(array)), given)


def _write(target: Any, values: Any) -> None:
    np.asarray(target)[...] = values
