"""Gradients on their way out: which are wanted, how large they are, and their format."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

from lumigrad.protos import dtypes
from lumigrad.server.engine import Backward, Plan
from lumigrad.server.limits import Limits, require
from lumigrad.v1 import render_pb2

_TORCH = {
    0: torch.float32,
    dtypes.FLOAT32: torch.float32,
    dtypes.FLOAT16: torch.float16,
    dtypes.BFLOAT16: torch.bfloat16,
}
_INDEX_BYTES = torch.int64.itemsize


def wanted_of(spec: render_pb2.BackwardSpec, plan: Plan) -> tuple[str, ...]:
    """The names of the gradients that are wanted, each once."""
    known = plan.gradient_sizes
    for name in spec.wanted:
        require(name in known, "spec.wanted", f"names out of {', '.join(known)}", name)
    return tuple(dict.fromkeys(spec.wanted)) or plan.default_wanted


def gradient_bytes(spec: render_pb2.BackwardSpec, plan: Plan, limits: Limits) -> int:
    """The size of the reply at the most, checked; and so is the format."""
    message = spec.format
    limit = "DTYPE_FLOAT32, DTYPE_FLOAT16 or DTYPE_BFLOAT16"
    require(message.dtype in _TORCH, "spec.format.dtype", limit, dtypes.name(message.dtype))
    size = _INDEX_BYTES * plan.count if message.sparse else 0
    for name in wanted_of(spec, plan):
        dtype = _TORCH[message.dtype] if name in plan.row_gradients else torch.float32
        size += dtype.itemsize * plan.gradient_sizes[name]
    limit = f"gradients of at most {limits.payload_bytes} bytes of reply"
    require(size <= limits.payload_bytes, "spec.wanted", limit, size)
    return size


def formatted(
    result: Backward, row_gradients: Collection[str], message: render_pb2.GradientFormat
) -> Mapping[str, torch.Tensor]:
    """The gradients as the caller wants them; with `sparse` only the rows touched, and "index".

    Primitives of several scenes are counted through.
    """
    gradients: dict[str, torch.Tensor] = {}
    index = None
    if message.sparse:
        index = result.touched.flatten().nonzero().flatten()
        gradients["index"] = index
    for name, gradient in result.gradients.items():
        if name not in row_gradients:
            gradients[name] = gradient
            continue
        rows = gradient
        if index is not None:
            rows = gradient.reshape(-1, *gradient.shape[result.touched.dim() :]).index_select(0, index)
        gradients[name] = rows.to(_TORCH[message.dtype])
    return gradients
