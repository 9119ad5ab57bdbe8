"""What the services know of a kind of scene."""

from __future__ import annotations

from typing import Protocol

from lumigrad.protos.hashing import tensors_of
from lumigrad.server.arrivals import Shapes, check_float32, shapes_of
from lumigrad.server.limits import Limits
from lumigrad.server.scenes import Tensors
from lumigrad.v1 import scene_pb2, tensor_pb2


class SceneKind(Protocol):
    """Scenes of one kind: which tensors they have, and what may be in them."""

    @property
    def name(self) -> str:
        """Its field in `Scene`."""

    def check_shapes(self, shapes: Shapes, limits: Limits, field: str) -> None:
        """Check all that the header tells; `field` is the path of the scene in its request."""

    def check_values(self, tensors: Tensors, field: str) -> None:
        """Check what only the device can see quickly."""

    def count(self, shapes: Shapes) -> int:
        """The number of primitives."""


def checked_tensors(
    scene: scene_pb2.Scene, kind: SceneKind, limits: Limits, field: str
) -> dict[str, tensor_pb2.Tensor]:
    """The tensors of a scene of this kind, after all that the header tells was checked."""
    tensors = dict(tensors_of(getattr(scene, kind.name)))
    for name, tensor in tensors.items():
        check_float32(tensor, f"{field}.{name}")
    kind.check_shapes(shapes_of(tensors), limits, field)
    return tensors
