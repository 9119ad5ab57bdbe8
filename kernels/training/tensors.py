"""Checks of tensors, and their conversion to arguments of the extension."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lumigrad.kernels.errors import ArgumentError


def check_tensor(
    name: str,
    tensor: Any,
    dtypes: Sequence[torch.dtype],
    shape: Sequence[int | None],
    device: torch.device | None,
    *,
    in_place: bool = False,
) -> None:
    """Checks that `tensor` has one of these types and this shape (None: any extent), and is on `device`.

    Raises:
        ArgumentError: The tensor fails a check, or is to be updated in place and is not contiguous.
    """
    if not (isinstance(tensor, torch.Tensor) and tensor.dtype in dtypes and _has_shape(tensor, shape)):
        types = " or ".join(_name_of(dtype) for dtype in dtypes)
        wanted = "[" + ", ".join("any" if n is None else str(n) for n in shape) + "]"
        raise ArgumentError(name, f"a {types} tensor of shape {wanted}", described(tensor))
    if device is not None and tensor.device != device:
        raise ArgumentError(name, f"a tensor on {device}, where the others are", f"one on {tensor.device}")
    if in_place and not tensor.is_contiguous():
        raise ArgumentError(name, "a contiguous tensor, to be updated in place", f"{tensor.stride()}")


def _has_shape(tensor: torch.Tensor, shape: Sequence[int | None]) -> bool:
    here = tensor.shape
    if here == shape:
        return True
    return len(here) == len(shape) and all(n is None or n == m for n, m in zip(shape, here, strict=True))


def described(tensor: Any) -> str:
    """Type and shape of a tensor, or the type of another object, for error messages."""
    if not isinstance(tensor, torch.Tensor):
        return type(tensor).__name__
    return f"{_name_of(tensor.dtype)} of shape {list(tensor.shape)}"


def plane(name: str, tensor: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """The extension's argument for a tensor: `name` for floats, `name` + "_bytes" for bytes and bools."""
    if tensor is None:
        return {}
    array = tensor.detach().contiguous()
    return {name: array} if array.dtype == torch.float32 else {f"{name}_bytes": array.view(torch.uint8)}


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
