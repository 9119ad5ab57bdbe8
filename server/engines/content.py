"""Scenes as the engines use them, and checks and uploads of their tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from lumigrad.protos import dtypes
from lumigrad.protos.tensors import PayloadReader, nbytes
from lumigrad.server.core.limits import Limits, require
from lumigrad.server.device.transfer import Transfer
from lumigrad.v1 import scene_pb2, tensor_pb2

# Shapes by tensor name.
Shapes = Mapping[str, Sequence[int]]


def shapes_of(tensors: Mapping[str, tensor_pb2.Tensor] | Mapping[str, torch.Tensor]) -> Shapes:
    """Return the shapes of tensors, or of their descriptions."""
    return {name: list(tensor.shape) for name, tensor in tensors.items()}


def check_type(tensor: tensor_pb2.Tensor, field: str, *known: tensor_pb2.DType) -> None:
    """Check that a tensor has one of these types, float32 by default, and a valid shape."""
    known = known or (dtypes.FLOAT32,)
    limit = " or ".join(map(dtypes.name, known))
    require(tensor.dtype in known, f"{field}.dtype", limit, dtypes.name(tensor.dtype))
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
    """Check the tensors' positions in the payload; returns a function that uploads them on the device's thread.

    With `in_place`, reads them from the caller's memory, which the caller may change meanwhile.
    """
    read = reader.read_in_place if in_place else reader.read
    arrays = {name: (read(tensor, f"{field}.{name}"), tensor.dtype) for name, tensor in tensors.items()}
    return lambda: {name: transfer.upload(array, dtype) for name, (array, dtype) in arrays.items()}


Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Outline:
    """The facts of a scene's header that requests are checked against.

    Attributes:
        obstacles: The number of obstacles of a world; 1 for a mesh.
        environments: The number of environments of a world; 1 for a mesh.
    """

    shapes: Shapes = field(default_factory=dict)
    obstacles: int = 0
    environments: int = 0


class Content(Protocol):
    """A scene on the device. Immutable: an update creates a new one."""

    @property
    def kind(self) -> str:
        """The scene's field in `Scene`."""

    @property
    def outline(self) -> Outline:
        """The facts that requests are checked against."""

    @property
    def bytes(self) -> int:
        """The memory that it takes, without the scenes that it needs."""

    @property
    def count(self) -> int:
        """The number of primitives."""

    @property
    def needs(self) -> Collection[str]:
        """The names of scenes that must stay stored as long as this scene."""

    @property
    def tensors(self) -> Tensors:
        """The scene's tensors by name."""

    def describe(self, info: scene_pb2.SceneInfo) -> None:
        """Add the fields of this kind of scene to its description."""

    def message(self, tensors: Mapping[str, tensor_pb2.Tensor]) -> scene_pb2.Scene:
        """Return the scene as a message, as a client would put it; `tensors` are its encoded tensors."""


class Rules(ABC):
    """The rules for the tensors of one kind of scene: names, types, shapes and values."""

    # The kind's field in `Scene`, and the name of the engine for it.
    name: str
    engine: str
    # All tensors that a scene may have, each with the tensors that it replaces.
    alternatives: Mapping[str, Collection[str]] = {}

    def check_type(self, name: str, tensor: tensor_pb2.Tensor, field: str) -> None:
        """Check the type of a tensor, float32 unless a kind allows others, and that its size can be computed."""
        check_type(tensor, field)

    @abstractmethod
    def check_shapes(self, shapes: Shapes, limits: Limits, field: str) -> None:
        """Check the shapes in the header; `field` is the path of the scene in the request."""

    @abstractmethod
    def check_values(self, tensors: Tensors, field: str) -> None:
        """Check the values on the device, where this is fast."""

    @abstractmethod
    def count(self, shapes: Shapes) -> int:
        """Return the number of primitives."""
