"""Argument checks that all engines share."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch

from lumigrad.kernels.errors import ArgumentError

MAX_EXTENT = 32768


def check(ok: bool, argument: str, expected: str, actual: object) -> None:
    """Raises an ArgumentError unless `ok`.

    Raises:
        ArgumentError: `ok` is false.
    """
    if not ok:
        raise ArgumentError(argument, expected, repr(actual))


def is_number(value: Any) -> bool:
    """Whether `value` is a single number; strings do not count."""
    try:
        float(value)
    except (TypeError, ValueError, RuntimeError):
        return False
    return not isinstance(value, (str, bytes))


def is_whole(value: Any) -> bool:
    """Whether `value` is an integer of Python or of another library."""
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def check_size(width: int, height: int) -> None:
    """Checks the size of an image, pixels.

    Raises:
        ArgumentError: An edge is not an integer from 1 to `MAX_EXTENT`.
    """
    for name, value in (("width", width), ("height", height)):
        if not is_whole(value) or not 1 <= value <= MAX_EXTENT:
            raise ArgumentError(name, f"1 to {MAX_EXTENT} pixels", f"{value}")


def finite_range(name: str, tensor: torch.Tensor) -> tuple[float, float]:
    """The smallest and the largest value of a tensor that is not empty, in one pass.

    Raises:
        ArgumentError: A value is NaN or infinite.
    """
    low, high = (float(value) for value in torch.aminmax(tensor))
    if not (-math.inf < low and high < math.inf):
        raise ArgumentError(name, "finite values", "NaN or infinity among them")
    return low, high


def check_tensor(
    name: str, tensor: torch.Tensor, shape: tuple[int | None, ...], device: torch.device, leader: str
) -> None:
    """Checks that `tensor` is float32, of this shape (None: any extent) and on `device`, the device of `leader`.

    Raises:
        ArgumentError: The tensor fails a check.
    """
    if not isinstance(tensor, torch.Tensor):
        raise ArgumentError(name, f"a float32 tensor of shape {_written(shape)}", type(tensor).__name__)
    fits = tensor.dim() == len(shape) and all(n is None or n == m for n, m in zip(shape, tensor.shape, strict=True))
    if tensor.dtype != torch.float32 or not fits:
        actual = f"{str(tensor.dtype).removeprefix('torch.')} of shape {list(tensor.shape)}"
        raise ArgumentError(name, f"a float32 tensor of shape {_written(shape)}", actual)
    if tensor.device != device:
        raise ArgumentError(name, f"a tensor on {device}, where {leader} are", f"one on {tensor.device}")


def _written(shape: tuple[int | None, ...]) -> str:
    return "[" + ", ".join("any" if n is None else str(n) for n in shape) + "]"
