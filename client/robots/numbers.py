"""Joint values as they came, NumPy or torch, and constants of the same kind beside them."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import numpy as np

from lumigrad.client.arrays import to_numpy
from lumigrad.client.errors import InvalidArgument


def is_tensor(value: Any) -> bool:
    """Whether it is torch's, which this module does not import for it."""
    return type(value).__module__.partition(".")[0] == "torch" or hasattr(value, "requires_grad_")


def module_of(value: Any) -> ModuleType:
    """The module with the functions for it; sin, cos, stack and the like have the same names in both."""
    return importlib.import_module("torch") if is_tensor(value) else np


def floating(name: str, value: Any) -> Any:
    """A torch tensor as it is; anything else as a NumPy array. What is not of a floating type becomes the default one.

    Raises:
        InvalidArgument: not real numbers.
    """
    if is_tensor(value):
        if value.is_complex():
            raise InvalidArgument.of(name, f"expected real numbers, got {value.dtype}; pass the real part")
        return value if value.is_floating_point() else value.to(module_of(value).get_default_dtype())
    array = to_numpy(name, value)
    if array.dtype.kind not in "fiub":
        raise InvalidArgument.of(name, f"expected numbers, got dtype {array.dtype}; pass a NumPy array or a tensor")
    return array if array.dtype.kind == "f" else array.astype(np.float64)


def like(value: Any, constant: Any) -> Any:
    """A NumPy array as what `value` is: module, floating type and device."""
    if is_tensor(value):
        return module_of(value).as_tensor(constant, dtype=value.dtype, device=value.device)
    return np.asarray(constant, value.dtype)
