"""What the worker holds of a scene, whatever its kind."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch

from lumigrad.server.arrivals import Shapes
from lumigrad.v1 import scene_pb2, tensor_pb2

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
