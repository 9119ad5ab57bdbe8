"""The tensors that an Update brings, checked by the header."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lumigrad.server.arrivals import Shapes, check_shape
from lumigrad.server.limits import require
from lumigrad.v1 import scene_pb2, tensor_pb2


def replacements(
    request: scene_pb2.UpdateRequest,
    names: Sequence[str],
    shapes: Shapes,
    check_type: Callable[[str, tensor_pb2.Tensor, str], None],
) -> dict[str, tensor_pb2.Tensor]:
    """The tensors by name, out of `names`, shaped as those stored; `check_type` is told name, tensor and its path."""
    require(not request.obstacles, "obstacles", "none: this scene is no world", f"{len(request.obstacles)}")
    require(len(request.tensors) > 0, "tensors", "at least one tensor", "none")
    tensors: dict[str, tensor_pb2.Tensor] = {}
    for index, entry in enumerate(request.tensors):
        where = f"tensors[{index}]"
        limit = f"one of {', '.join(names)}, each once"
        require(entry.name in names and entry.name not in tensors, f"{where}.name", limit, entry.name)
        check_type(entry.name, entry.tensor, where)
        check_shape(entry.tensor.shape, shapes[entry.name], where)
        tensors[entry.name] = entry.tensor
    return tensors
