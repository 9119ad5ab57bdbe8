"""Checks the arguments of training steps before anything is sent, so that a typo does not end a stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from lumigrad.client.base.arguments import names, number, one_of, whole_number
from lumigrad.client.base.arrays import Array, float32_array
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.rendering.request import WireFormat
from lumigrad.protos import dtypes
from lumigrad.v1 import tensor_pb2

# Width and height of each view, pixels.
Sizes = Sequence[tuple[int, int]]
# A gradient in its wire format, and its dtype; None: NumPy's.
Encoded = tuple[Array, tensor_pb2.DType | None]

_MOST_STEPS = 1 << 40
_SLOWEST, _FASTEST = 1e-6, 1e6
_MOST_VIEWS = 1 << 16
# The images of any kind of scene; the worker checks whether the training's scene has them.
_OUTPUTS = (
    *("color", "alpha", "transmittance", "depth", "expected_depth", "inverse_depth", "hit_distance"),
    *("expected_hit_distance", "median_depth", "normals", "distortion", "surface_normals"),
)
_BYTES = ("color", "alpha")


def step_count(count: Any) -> int:
    """Returns the checked number of steps."""
    return whole_number("count", count, 0, _MOST_STEPS)


def batch_size(batch: Any) -> int:
    """Returns the checked number of views that the worker chooses for a step."""
    return whole_number("batch", batch, 1, _MOST_VIEWS)


def step_pace(pace: Any) -> float:
    """Returns the checked pace of the schedules."""
    given = number("pace", pace)
    if not _SLOWEST <= given <= _FASTEST:
        raise InvalidArgument.of("pace", f"expected {_SLOWEST:g} to {_FASTEST:g}, got {given:g}")
    return given


def step_views(views: Any, count: int, sizes: Sizes | None) -> list[tuple[int, ...]]:
    """Returns the checked views of each of `count` steps; an empty tuple lets the worker choose.

    `sizes` are the image sizes of all views; None: only the worker knows them.
    """
    if views is None:
        return [()] * count
    advice = "pass the numbers of the views for each step, e.g. [[0], [1, 2]]"
    given = list(views) if isinstance(views, Iterable) and not isinstance(views, str | bytes) else None
    if given is None or len(given) != count:
        found = type(views).__name__ if given is None else f"those of {len(given)}"
        raise InvalidArgument.of("views", f"expected the views of {count} steps, got {found}; {advice}")
    return [_views_of(f"views[{index}]", each, sizes, advice) for index, each in enumerate(given)]


def one_steps_views(views: Any, sizes: Sizes | None) -> tuple[int, ...]:
    """Returns the checked views of a single step; empty: the worker chooses."""
    return _views_of("views", views, sizes, "pass the numbers of the step's views, e.g. [0, 2]")


def _views_of(name: str, views: Any, sizes: Sizes | None, advice: str) -> tuple[int, ...]:
    if not isinstance(views, Iterable) or isinstance(views, str | bytes):
        raise InvalidArgument.of(name, f"expected numbers of views, got {type(views).__name__}; {advice}")
    largest = (_MOST_VIEWS if sizes is None else len(sizes)) - 1
    numbers = tuple(whole_number(name, each, 0, largest) for each in views)
    if len(set(numbers)) < len(numbers):
        raise InvalidArgument.of(name, f"expected each view once, got {len(numbers)} with some twice")
    found = {sizes[number] for number in numbers} if sizes is not None else set()
    if len(found) > 1:
        shown = " and ".join(f"{width}x{height}" for width, height in sorted(found)[:2])
        raise InvalidArgument.of(name, f"expected views of one size, got {shown}; put them into different steps")
    return numbers


def step_outputs(outputs: Any, image_format: Any, *, needs_one: bool = False) -> tuple[str, ...]:
    """Returns the checked names of the images that a step returns; with `needs_one` at least one."""
    given = names("outputs", outputs)
    for name in given:
        one_of("outputs", name, _OUTPUTS)
    if needs_one and not given:
        raise InvalidArgument.of("outputs", "expected at least one, got none; name what your loss needs")
    others = [name for name in given if name not in _BYTES]
    if image_format == "uint8" and others:
        text = f"expected another format, since uint8 is for {' and '.join(_BYTES)}, got uint8 for {others[0]}"
        raise InvalidArgument.of("image_format", text)
    return given


def encoded_gradients(
    images: Mapping[str, Array], gradients: Mapping[str, Any], gradient_format: WireFormat
) -> dict[str, Encoded]:
    """Checks the gradients of a batch's images and returns them by name, in their wire format."""
    one_of("gradient_format", gradient_format, get_args(WireFormat))
    if not gradients:
        raise InvalidArgument.of("gradients", f"expected at least one of {', '.join(images)}, got none")
    for name, value in gradients.items():
        if name not in images:
            text = f"expected gradients of {', '.join(images)}, which the batch has; name others in outputs=…"
            raise InvalidArgument.of(name, text)
        shape = float32_array(name, value).shape
        if shape != images[name].shape:
            expected = list(images[name].shape)
            raise InvalidArgument.of(name, f"expected the shape of the output, {expected}, got {list(shape)}")
    return {name: _encoded(name, value, gradient_format) for name, value in gradients.items()}


def _encoded(name: str, value: Any, gradient_format: WireFormat) -> Encoded:
    array = float32_array(name, value)
    if gradient_format == "float32":
        return array, None
    if gradient_format == "float16":
        return array.astype("<f2"), None
    return dtypes.float32_to_bfloat16(array), dtypes.BFLOAT16
