"""Checks the array arguments of the JAX functions, including tracers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from lumigrad.client.base.arrays import check_shape, refuse_masks, shape_text
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.operators.call import refuse_scene
from lumigrad.client.rendering.request import channels_of
from lumigrad.client.values.handle import SceneHandle


def shaped(name: str, value: Any, shape: Sequence[int | str]) -> Any:
    """Converts `value` to a float32 JAX array and checks its shape.

    Args:
        name: the argument's name, for the error.
        value: anything that JAX accepts as an array, tracers included.
        shape: the expected sizes; a string matches any size.

    Raises:
        InvalidArgument: the value is not an array of real numbers, or has the wrong shape.
    """
    refuse_scene(name, value)
    if value is None:
        raise InvalidArgument.of(name, f"expected an array of shape {shape_text(shape)}, got None")
    array = real(name, value)
    check_shape(name, array.shape, shape, "; use jax.vmap" if array.ndim > len(shape) else "")
    return array


def real(name: str, value: Any) -> Any:
    """Converts `value` to a float32 JAX array of any shape; raises InvalidArgument unless it has real numbers."""
    refuse_masks(name, value)
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidArgument.of(name, f"expected an array, got {type(value).__name__} ({error})") from error
    if array.dtype.kind == "c":
        raise InvalidArgument.of(name, f"expected real numbers, got {array.dtype}; pass the real part")
    return array.astype(jnp.float32)


def optional(name: str, value: Any, shape: Sequence[int | str]) -> Any:
    """Returns None for None, else the result of `shaped`."""
    return None if value is None else shaped(name, value, shape)


def backdrop(value: Any, channels: int | str, cameras: tuple[int, ...] = ()) -> Any:
    """Returns a background [K], or [*cameras, K], of known channels or those that `channels` names; None for None.

    One number is that of all known channels.
    """
    if value is None:
        return None
    array = real("background", value)
    if array.ndim == 0 and not isinstance(channels, str):
        array = jnp.broadcast_to(array, (channels,))
    return shaped("background", array, (channels,) if array.ndim == 1 else (*cameras, channels))


def stored_channels(scene: SceneHandle | None) -> int:
    """Returns the number of colour channels of a stored scene; raises InvalidArgument if the handle has no copy."""
    channels = None if scene is None else channels_of(scene)
    if channels is None:
        raise InvalidArgument.of(
            "scene",
            "expected a handle with a copy of its scene, which tells the number of channels, got one without; pass "
            "what put returned, or Client.get(scene_id, with_tensors=True)",
        )
    return channels
