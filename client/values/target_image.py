"""Target images, with which a training compares its renderings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lumigrad.client.base.arrays import Array, Tensors, check_levels, float32_array, to_numpy
from lumigrad.client.base.cautions import warn_of_flags, warn_of_levels
from lumigrad.client.errors import InvalidArgument

# The rounding of filters, by which weights may exceed 0 to 1.
_ROUNDING = 1e-5


@dataclass(frozen=True, eq=False, init=False)
class TargetImage(Tensors):
    """The target image of one view. Arrays of uint8 stay uint8; floats and bools become float32.

    Attributes:
        color: [H, W, K] uint8, meaning value / 255, or float32, where 1 is white; None: colours are not compared.
        mask: [H, W] weights of the pixels, 0 to 1, with which alpha can be compared too; uint8 means value / 255.
        depth: [H, W] camera-space depths, scene units; values that are <= 0 or not finite are unknown.

    Example:
        target_image = TargetImage(photographs[0], mask=np.ones(photographs[0].shape[:2]))
    """

    color: Array | None
    mask: Array | None
    depth: Array | None

    def __init__(self, color: Any = None, mask: Any = None, depth: Any = None) -> None:
        given = {
            "color": _image("color", color, ("H", "W", "K")),
            "mask": _image("mask", mask, ("H", "W")),
            "depth": None if depth is None else float32_array("depth", depth, ("H", "W")),
        }
        sizes = {name: array.shape[:2] for name, array in given.items() if array is not None}
        if not sizes:
            raise InvalidArgument.of("color", "expected at least one of color, mask and depth, got none")
        first = next(iter(sizes.values()))
        for name, size in sizes.items():
            if size != first:
                raise InvalidArgument.of(name, f"expected {first[0]} rows of {first[1]} pixels, got {list(size)}")
        if given["color"] is not None and given["color"].dtype != np.uint8:
            warn_of_levels("color", given["color"])
        if given["mask"] is not None:
            _check_weights(given["mask"])
        vars(self).update(given)

    @property
    def height(self) -> int:
        """Height in pixels."""
        return int(next(iter(self.tensors.values())).shape[0])

    @property
    def width(self) -> int:
        """Width in pixels."""
        return int(next(iter(self.tensors.values())).shape[1])

    def __repr__(self) -> str:
        return f"TargetImage({self.width}x{self.height}, {', '.join(self.tensors)})"


def _image(name: str, value: Any, shape: tuple[str, ...]) -> Array | None:
    if value is None:
        return None
    array = to_numpy(name, value)
    check_levels(name, array)
    if array.dtype != np.uint8:
        return float32_array(name, array, shape)
    if array.ndim != len(shape) or 0 in array.shape:
        raise InvalidArgument.of(name, f"expected shape [{', '.join(shape)}], got {list(array.shape)}")
    # A view, so that the caller's own array stays writeable.
    kept: Array = np.ascontiguousarray(array).view()
    kept.flags.writeable = False
    return kept


def _check_weights(mask: Array) -> None:
    """Raises InvalidArgument for weights outside 0 to 1; warns of flags as levels, whose weights would be tiny."""
    if mask.dtype == np.uint8:
        warn_of_flags("mask", mask)
    elif not ((mask >= -_ROUNDING) & (mask <= 1 + _ROUNDING)).all():
        text = f"expected weights of 0 to 1, got {mask.min():g} to {mask.max():g}"
        raise InvalidArgument.of("mask", f"{text}; pass levels of 0 to 255 as uint8, clip what a filter overshoots")
