"""Gradients on their way out: summed over the cameras, then in the format that the caller wants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from lumigrad.protos import dtypes
from lumigrad.server.limits import require
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


class GradientSum:
    """The gradients of one call, one camera after the other."""

    def __init__(self, per_primitive: Sequence[str], per_camera: Sequence[str]) -> None:
        """Name the gradients that have a row per primitive, and those that are stacked instead of summed."""
        self._per_primitive = frozenset(per_primitive)
        self._per_camera = frozenset(per_camera)
        self._sums: dict[str, torch.Tensor] = {}
        self._stacks: dict[str, list[torch.Tensor]] = {}
        self._touched: torch.Tensor | None = None

    def add(self, gradients: Mapping[str, torch.Tensor], touched: torch.Tensor) -> None:
        """Count one camera in; `touched` [N] is 0 where a primitive has no gradient. Keeps the tensors."""
        for name, gradient in gradients.items():
            if name in self._per_camera:
                self._stacks.setdefault(name, []).append(gradient)
            elif name in self._sums:
                self._sums[name] += gradient
            else:
                self._sums[name] = gradient
        self._touched = touched if self._touched is None else self._touched + touched

    def formatted(self, message: render_pb2.GradientFormat) -> dict[str, torch.Tensor]:
        """The result by name; with `sparse` only the rows touched, and "index"."""
        result = {name: torch.cat(parts) for name, parts in self._stacks.items()}
        index = None
        if message.sparse and self._touched is not None:
            index = self._touched.nonzero().flatten()
            result["index"] = index
        for name, gradient in self._sums.items():
            if name in self._per_primitive:
                rows = gradient if index is None else gradient.index_select(0, index)
                result[name] = rows.to(_TORCH[message.dtype])
            else:
                result[name] = gradient
        return result
