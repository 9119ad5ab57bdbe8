"""The gradients of the loss that a Backward brings, checked by the header."""

from __future__ import annotations

from collections.abc import Sequence

from lumigrad.protos import dtypes
from lumigrad.protos.tensors import nbytes
from lumigrad.server.arrivals import Shapes, check_shape
from lumigrad.server.limits import require
from lumigrad.v1 import tensor_pb2

_DTYPES = (dtypes.FLOAT32, dtypes.FLOAT16, dtypes.BFLOAT16)


def checked_gradients(
    entries: Sequence[tensor_pb2.NamedTensor], shapes: Shapes, field: str
) -> dict[str, tensor_pb2.Tensor]:
    """The tensors by name; `shapes` are those of all that there may be."""
    names = ", ".join(shapes)
    require(len(entries) > 0, field, f"at least one of {names}", "none")
    tensors: dict[str, tensor_pb2.Tensor] = {}
    for index, entry in enumerate(entries):
        where = f"{field}[{index}]"
        known = entry.name in shapes and entry.name not in tensors
        require(known, f"{where}.name", f"one of {names}, each once", entry.name)
        limit = "DTYPE_FLOAT32, DTYPE_FLOAT16 or DTYPE_BFLOAT16"
        require(entry.tensor.dtype in _DTYPES, f"{where}.tensor.dtype", limit, dtypes.name(entry.tensor.dtype))
        nbytes(entry.tensor, where)
        check_shape(entry.tensor.shape, shapes[entry.name], f"{where}.tensor")
        tensors[entry.name] = entry.tensor
    return tensors
