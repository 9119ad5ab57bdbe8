"""What the services know of a kind of scene."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from lumigrad.protos.tensors import PayloadReader
from lumigrad.server.content import Content, Outline
from lumigrad.server.runtime import Runtime
from lumigrad.server.timings import StageTimes
from lumigrad.v1 import scene_pb2

# Makes the content on the device's thread, and says where the time went.
Make = Callable[[StageTimes], Content]


class Arrival(Protocol):
    """A scene, or a change of one, whose header was checked; its tensors follow with the payload."""

    @property
    def outline(self) -> Outline:
        """What requests are checked against."""

    def receive(self, reader: PayloadReader) -> Make:
        """Check the places of the tensors in the payload."""


class SceneKind(Protocol):
    """Scenes of one kind: what they consist of, and how they change."""

    @property
    def name(self) -> str:
        """Its field in `Scene`."""

    @property
    def engine(self) -> str:
        """The engine that computes with them."""

    def arrival(self, scene: scene_pb2.Scene, runtime: Runtime, field: str) -> Arrival:
        """Check all that the header tells; `field` is the path of this kind's message in the request."""

    def change(self, content: Any, request: scene_pb2.UpdateRequest, runtime: Runtime) -> Arrival:
        """Check all that the header tells of a change of a scene of this kind."""
