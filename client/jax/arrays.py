"""Checks of the arrays that JAX functions are given, tracers included."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from lumigrad.client.base.arrays import check_shape, shape_text
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.operators.call import refuse_scene
from lumigrad.client.rendering.request import channels_of
from lumigrad.client.values.handle import SceneHandle


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
