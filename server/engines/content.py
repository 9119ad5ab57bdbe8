"""Scenes as engines see them: tensors that arrive, and tensors on the device."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from lumigrad.protos import dtypes
from lumigrad.protos.tensors import PayloadReader, nbytes
from lumigrad.server.core.limits import require
from lumigrad.server.device.transfer import Transfer
from lumigrad.v1 import scene_pb2, tensor_pb2

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


Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Outline:
    """What a request about a scene is checked against, known from the scene's header.

    Attributes:
        shapes: Of its tensors, by name.
        obstacles: Of a world; a mesh is one.
        environments: Of a world; a mesh has one.
    """

    shapes: Shapes = field(default_factory=dict)
    obstacles: int = 0
    environments: int = 0


class Content(Protocol):
    """A scene on the device. It never changes, an update makes another: whoever holds this one may go on."""

    @property
    def kind(self) -> str:
        """Its field in `Scene`."""

    @property
    def outline(self) -> Outline:
        """What requests are checked against."""

    @property
    def bytes(self) -> int:
        """Memory that it takes, without the scenes that it needs."""

    @property
    def count(self) -> int:
        """The number of primitives."""

    @property
    def needs(self) -> Collection[str]:
        """The names of stored scenes that must stay as long as this one is stored."""

    @property
    def tensors(self) -> Tensors:
        """By name."""

    def describe(self, info: scene_pb2.SceneInfo) -> None:
        """Add what only scenes of this kind have."""

    def message(self, tensors: Mapping[str, tensor_pb2.Tensor]) -> scene_pb2.Scene:
        """The scene as it would be put; `tensors` are its own on their way."""
