"""Gradients of a reply: their names, format and finiteness."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from lumigrad.protos import dtypes
from lumigrad.server.core.limits import Limits, require
from lumigrad.server.engines.base import Backward
from lumigrad.server.engines.requests import Plan
from lumigrad.v1 import render_pb2


def nonfinite(tensors: Iterable[torch.Tensor]) -> int:
    """Count the NaN and infinite values; one pass over the memory if there are none."""
    return sum(_count(tensor) for tensor in tensors if tensor.is_floating_point())


def _count(tensor: torch.Tensor) -> int:
    # A nonfinite value makes the sum nonfinite; so does overflow, so count in that case.
    if math.isfinite(tensor.sum(dtype=torch.float32).item()):
        return 0
    return tensor.numel() - int(torch.isfinite(tensor).sum())


TORCH_DTYPES = {
    0: torch.float32,
    dtypes.FLOAT32: torch.float32,
    dtypes.FLOAT16: torch.float16,
    dtypes.BFLOAT16: torch.bfloat16,
}
_INDEX_BYTES = torch.int64.itemsize


@dataclass(frozen=True)
class Wanted:
    """The gradients that a Backward requests: names, each once, and format."""

    names: tuple[str, ...]
    format: render_pb2.GradientFormat

    @staticmethod
    def of(names: Sequence[str], message: render_pb2.GradientFormat, plan: Plan) -> Wanted:
        """Check a request; without names: the plan's default."""
        known = plan.gradient_sizes
        for name in names:
            require(name in known, "spec.wanted", f"one of {', '.join(known)}", name)
        limit = "DTYPE_FLOAT32, DTYPE_FLOAT16 or DTYPE_BFLOAT16"
        require(message.dtype in TORCH_DTYPES, "spec.format.dtype", limit, dtypes.name(message.dtype))
        return Wanted(tuple(dict.fromkeys(names)) or plan.default_wanted, message)

    def bytes(self, plan: Plan, limits: Limits) -> int:
        """The largest size of the reply, checked against the limits."""
        size = _INDEX_BYTES * plan.count if self.format.sparse else 0
        for name in self.names:
            dtype = TORCH_DTYPES[self.format.dtype] if name in plan.row_gradients else torch.float32
            size += dtype.itemsize * plan.gradient_sizes[name]
        limit = f"gradients of at most {limits.payload_bytes} bytes of reply"
        require(size <= limits.payload_bytes, "spec.wanted", limit, size)
        return size


def formatted(
    result: Backward, row_gradients: Collection[str], message: render_pb2.GradientFormat
) -> Mapping[str, torch.Tensor]:
    """Convert gradients to the requested format; with `sparse` only the touched rows, and "index".

    Primitives of several scenes are numbered consecutively.
    """
    gradients: dict[str, torch.Tensor] = {}
    index, touched = None, result.touched
    if message.sparse:
        assert touched is not None
        index = touched.flatten().nonzero().flatten()
        gradients["index"] = index
    for name, gradient in result.gradients.items():
        if name not in row_gradients:
            gradients[name] = gradient
            continue
        rows = gradient
        if index is not None and touched is not None:
            rows = gradient.reshape(-1, *gradient.shape[touched.dim() :]).index_select(0, index)
        gradients[name] = rows.to(TORCH_DTYPES[message.dtype])
    return gradients
