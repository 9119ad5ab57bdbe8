"""Gradients on their way out, in the format that the caller wants."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from lumigrad.protos import dtypes
from lumigrad.server.limits import require
from lumigrad.server.sphere_cloud import PER_SPHERE
from lumigrad.v1 import render_pb2

_TORCH = {
    0: torch.float32,
    dtypes.FLOAT32: torch.float32,
    dtypes.FLOAT16: torch.float16,
    dtypes.BFLOAT16: torch.bfloat16,
}


def check_format(message: render_pb2.GradientFormat, field: str) -> None:
    """Refuse element types that gradients do not come in."""
    limit = "DTYPE_FLOAT32, DTYPE_FLOAT16 or DTYPE_BFLOAT16"
    require(message.dtype in _TORCH, f"{field}.dtype", limit, dtypes.name(message.dtype))


def gradient_bytes(count: int, channels: int) -> int:
    """The size of the gradients per primitive, all of them."""
    return 4 * count * (3 + channels + 1 + 1)


def formatted(
    gradients: Mapping[str, torch.Tensor], touched: torch.Tensor, message: render_pb2.GradientFormat
) -> dict[str, torch.Tensor]:
    """The gradients as the caller wants them; with `sparse` only the rows touched, and "index".

    `touched` [N] is 0 where a primitive has no gradient.
    """
    result: dict[str, torch.Tensor] = {}
    index = None
    if message.sparse:
        index = touched.nonzero().flatten()
        result["index"] = index
    for name, gradient in gradients.items():
        if name not in PER_SPHERE:
            result[name] = gradient
            continue
        rows = gradient if index is None else gradient.index_select(0, index)
        result[name] = rows.to(_TORCH[message.dtype])
    return result
