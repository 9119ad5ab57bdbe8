"""Tensors of any device and type -> tensors that can travel."""

from __future__ import annotations

from typing import Any

import torch

from lumigrad.client.errors import InvalidArgument


def on_host(name: str, value: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """`value` on the CPU; autograd brings the gradient back to its type and device."""
    try:
        tensor = torch.as_tensor(value)
        if tensor.is_complex():
            # Their imaginary parts would be lost.
            raise InvalidArgument.of(name, f"expected real numbers, got {tensor.dtype}; pass the real part")
        if tensor.is_meta:
            raise InvalidArgument.of(name, "expected a tensor with values, got one on the device meta, which has none")
        return tensor.to("cpu", dtype)
    except InvalidArgument:
        raise
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidArgument.of(name, f"expected a tensor, got {type(value).__name__} ({error})") from error
