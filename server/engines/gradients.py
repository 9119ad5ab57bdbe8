"""Gradients of a reply: their names, format and finiteness."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lumigrad.protos import dtypes
from lumigrad.protos.dtypes import Array
from lumigrad.server.core.limits import Limits, require, require_reply
from lumigrad.server.engines.base import Backward
from lumigrad.server.engines.detail import Cut
from lumigrad.server.engines.requests import Plan
from lumigrad.v1 import render_pb2


@dataclass(frozen=True)
class Gradients:
    """Gradients on the host.

    Attributes:
        arrays: Arrays by name; bfloat16 as uint16 bits.
        total: See `total_of`.
    """

    arrays: Mapping[str, Array]
    total: Array

    def nonfinite(self) -> int:
        """Return the number of NaN and infinite values; only reads the sum if there are none."""
        # A nonfinite value makes the sum nonfinite, but so does overflow, so count the values then.
        return 0 if math.isfinite(self.total) else sum(map(_nonfinite, self.arrays.values()))


def total_of(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return the sum of all floating-point values, on their device, to be downloaded with them without a wait."""
    sums = [tensor.sum(dtype=torch.float32) for tensor in tensors if tensor.is_floating_point()]
    # Gradients of poses are computed on the host.
    on_host = sum(each.item() for each in sums if each.device.type == "cpu")
    on_device = [each for each in sums if each.device.type != "cpu"]
    return torch.stack(on_device).sum() + on_host if on_device else torch.tensor(on_host)


def _nonfinite(array: Array) -> int:
    if array.dtype == np.uint16:
        return int(np.count_nonzero(array & _BFLOAT16_EXPONENT == _BFLOAT16_EXPONENT))
    return int(np.count_nonzero(~np.isfinite(array)))


_BFLOAT16_EXPONENT = np.uint16(0x7F80)
TORCH_DTYPES = {
    0: torch.float32,
    dtypes.FLOAT32: torch.float32,
    dtypes.FLOAT16: torch.float16,
    dtypes.BFLOAT16: torch.bfloat16,
}
_INDEX_BYTES = torch.int64.itemsize


@dataclass(frozen=True)
class Wanted:
    """The gradients that a Backward requests: distinct names, and the format."""

    names: tuple[str, ...]
    format: render_pb2.GradientFormat

    @staticmethod
    def of(names: Sequence[str], message: render_pb2.GradientFormat, plan: Plan, *, is_sparse: bool = False) -> Wanted:
        """Check a request; without names, use the plan's default. Gradients of scenes with levels are always sparse."""
        known = plan.gradient_sizes
        for name in names:
            require(name in known, "spec.wanted", f"one of {', '.join(known)}", name)
        limit = "DTYPE_FLOAT32, DTYPE_FLOAT16 or DTYPE_BFLOAT16"
        require(message.dtype in TORCH_DTYPES, "spec.format.dtype", limit, dtypes.name(message.dtype))
        wanted = tuple(dict.fromkeys(names)) or plan.default_wanted
        if is_sparse:
            # Other gradients have no rows.
            has_rows = any(name in plan.row_gradients for name in wanted)
            message = render_pb2.GradientFormat(dtype=message.dtype, sparse=has_rows)
        return Wanted(wanted, message)

    @property
    def is_plain(self) -> bool:
        """Whether gradients travel as they are computed."""
        return not self.format.sparse and TORCH_DTYPES[self.format.dtype] == torch.float32

    def bytes(self, plan: Plan, limits: Limits, rows: int = 0) -> int:
        """Return the size of the reply, checked against the limits; a sparse reply has `rows` rows."""
        is_sparse = self.format.sparse
        size = _INDEX_BYTES * rows if is_sparse else 0
        for name in self.names:
            values, dtype = plan.gradient_sizes[name], torch.float32
            if name in plan.row_gradients:
                values = values // max(1, plan.count) * rows if is_sparse else values
                dtype = TORCH_DTYPES[self.format.dtype]
            size += dtype.itemsize * values
        require_reply(size, limits, "spec.wanted", "gradients of ", self._remedy(plan))
        return size

    def _remedy(self, plan: Plan) -> str:
        """Say what would make the reply smaller, other than what the request already does."""
        if not any(name in plan.row_gradients for name in self.names):
            return "; fewer gradients take less"
        rows_remedy = "fewer primitives" if self.format.sparse else "sparse rows"
        if TORCH_DTYPES[self.format.dtype] == torch.float32:
            return f"; {rows_remedy}, fewer gradients, or 16 bits take less"
        return f"; {rows_remedy} or fewer gradients take less"


def formatted(
    result: Backward,
    row_gradients: Collection[str],
    message: render_pb2.GradientFormat,
    reserve_rows: Callable[[int], None],
    cut: Cut | None = None,
) -> Mapping[str, torch.Tensor]:
    """Convert gradients to the requested format; if `sparse`, only the touched rows, with their "index".

    `reserve_rows` is called with the number of rows before they are gathered, and may raise to refuse it.

    Primitives of several scenes are numbered consecutively, primitives of a cut as in the whole scene.
    """
    gradients: dict[str, torch.Tensor] = {}
    index, touched = None, result.touched
    if message.sparse:
        assert touched is not None
        index = touched.flatten().nonzero().flatten()
        reserve_rows(len(index))
        gradients["index"] = index if cut is None else cut.numbers(index)
    for name, gradient in result.gradients.items():
        if name not in row_gradients:
            gradients[name] = gradient
            continue
        rows = gradient
        if index is not None and touched is not None:
            rows = gradient.reshape(-1, *gradient.shape[touched.dim() :]).index_select(0, index)
        gradients[name] = rows.to(TORCH_DTYPES[message.dtype])
    return gradients
