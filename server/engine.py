"""What the services know of an engine, and what it knows of a call."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch

from lumigrad.server.arrivals import Shapes
from lumigrad.server.limits import Limits
from lumigrad.server.scenes import Tensors
from lumigrad.v1 import render_pb2


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a RenderSpec asks of an engine, given a scene of known shapes. Each engine adds what its kernels want.

    Attributes:
        outputs: Asked for, each once.
        output_shapes: Of every output that there is.
        upstream_shapes: Of every output gradient that a Backward may bring.
        gradient_sizes: Of everything that a Backward may want, how many values come back.
        default_wanted: What a Backward wants that does not say.
        row_gradients: Those that come back with a row per primitive.
        count: Primitives.
    """

    outputs: tuple[str, ...]
    output_shapes: Shapes
    upstream_shapes: Shapes
    gradient_sizes: Mapping[str, int]
    default_wanted: tuple[str, ...]
    row_gradients: Collection[str]
    count: int


P = TypeVar("P", bound=Plan)


class State(Protocol):
    """A forward that waits for its backward."""

    @property
    def bytes(self) -> int:
        """Memory it holds."""


class Forward(Protocol):
    """What a forward pass of the kernels returns."""

    @property
    def outputs(self) -> Mapping[str, torch.Tensor]:
        """By name."""

    @property
    def state(self) -> State | None:
        """If it was to be retained."""

    def stages(self) -> Mapping[str, float]:
        """Milliseconds by kernel stage."""


class Backward(Protocol):
    """What a backward pass of the kernels returns."""

    @property
    def gradients(self) -> Mapping[str, torch.Tensor]:
        """By name."""

    @property
    def touched(self) -> torch.Tensor:
        """By primitive, 0 where there is no gradient."""

    def stages(self) -> Mapping[str, float]:
        """Milliseconds by kernel stage."""


class Engine(Protocol[P]):
    """Reads requests about one kind of scene, and runs the kernels that answer them on the device's thread."""

    @property
    def name(self) -> str:
        """The kind of its scenes, and its field in `RenderSpec.settings`."""

    def plan(self, spec: render_pb2.RenderSpec, shapes: Shapes, limits: Limits, field: str) -> P:
        """Read and check a request; `field` is the path of the spec in it."""

    def forward(
        self, plan: P, tensors: Tensors, outputs: Sequence[str], *, retain: bool, before_view: Callable[[], object]
    ) -> Forward:
        """Render every view."""

    def backward(
        self, state: Any, output_gradients: Tensors, wanted: Sequence[str], before_view: Callable[[], object]
    ) -> Backward:
        """Differentiate what was rendered."""
