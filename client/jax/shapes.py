"""Checks of arrays of which JAX knows the shape and not the values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from lumigrad.client.base.arrays import check_shape, shape_text
from lumigrad.client.errors import InvalidArgument


def shaped(name: str, value: Any, shape: Sequence[int | str]) -> Any:
    """`value` as a float32 JAX array.

    Args:
        name: the argument's name, for the error.
        value: anything that JAX takes for an array, a tracer included.
        shape: the sizes expected; a string stands for any size.

    Raises:
        InvalidArgument: no numbers, or another shape.
    """
    if value is None:
        raise InvalidArgument.of(name, f"expected an array of shape {shape_text(shape)}, got None")
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError) as error:
        raise InvalidArgument.of(name, f"expected an array, got {type(value).__name__} ({error})") from error
    check_shape(name, array.shape, shape, "; use jax.vmap")
    if array.dtype.kind == "c":
        raise InvalidArgument.of(name, f"expected real numbers, got {array.dtype}; pass the real part")
    return array.astype(jnp.float32)


def optional(name: str, value: Any, shape: Sequence[int | str]) -> Any:
    """`shaped`, or None for None."""
    return None if value is None else shaped(name, value, shape)
