"""Tensors as they arrive: types and shapes by the header, then arrays in the payload, then tensors on the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from lumigrad.protos import dtypes
from lumigrad.protos.tensors import PayloadReader, nbytes
from lumigrad.server.limits import require
from lumigrad.server.transfer import Transfer
from lumigrad.v1 import tensor_pb2

# Sizes by the name of a tensor.
Shapes = Mapping[str, Sequence[int]]


def shapes_of(tensors: Mapping[str, tensor_pb2.Tensor] | Mapping[str, torch.Tensor]) -> Shapes:
    """Their sizes, whether they have arrived or not."""
    return {name: list(tensor.shape) for name, tensor in tensors.items()}


def check_float32(tensor: tensor_pb2.Tensor, field: str) -> None:
    """Check the type, and that the size can be computed."""
    require(tensor.dtype == dtypes.FLOAT32, f"{field}.dtype", "DTYPE_FLOAT32", dtypes.name(tensor.dtype))
    nbytes(tensor, field)


def check_shape(shape: Sequence[int], expected: Sequence[int], field: str) -> None:
    """Check one shape."""
    require(list(shape) == list(expected), f"{field}.shape", f"{list(expected)}", list(shape))


def uploader(
    tensors: Mapping[str, tensor_pb2.Tensor],
    reader: PayloadReader,
    transfer: Transfer,
    field: str,
    *,
    in_place: bool = False,
) -> Callable[[], dict[str, torch.Tensor]]:
    """Check the places of tensors in the payload; returns what uploads them, for the device's thread.

    `in_place`: the caller may change them while they are in use.
    """
    read = reader.read_in_place if in_place else reader.read
    arrays = {name: (read(tensor, f"{field}.{name}"), tensor.dtype) for name, tensor in tensors.items()}
    return lambda: {name: transfer.upload(array, dtype) for name, (array, dtype) in arrays.items()}
