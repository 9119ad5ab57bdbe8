"""What the services know of an engine, and what it knows of a call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol, TypeVar

import torch

from lumigrad.server.core.limits import Limits
from lumigrad.server.engines.content import Shapes, Tensors
from lumigrad.v1 import render_pb2


@dataclass(frozen=True, kw_only=True)
class Plan(ABC):
    """What a request asks of an engine, given a scene of known outline. Each engine adds what its kernels want.

    Attributes:
        outputs: Asked for, each once.
        output_shapes: Of every output that there is.
        upstream_shapes: Of every output gradient that a Backward may bring.
        gradient_sizes: Of everything that a Backward may want, how many values come back.
        default_wanted: What a Backward wants that does not say.
        row_gradients: Those that come back with a row per primitive.
        count: Primitives.
        views: That are rendered; a query is one.
        kind: Equal of plans that may be computed as one if they are about the same scene; None: of no other.
        fill: The share that it takes of the most that is computed as one.
    """

    outputs: tuple[str, ...]
    output_shapes: Shapes
    upstream_shapes: Shapes
    gradient_sizes: Mapping[str, int]
    default_wanted: tuple[str, ...]
    row_gradients: Collection[str]
    count: int
    views: int
    kind: Hashable | None
    fill: float

    @property
    def lead(self) -> int:
        """The length of the first axis, which all outputs share: views, or trajectories."""
        return self.output_shapes[self.outputs[0]][0]

    def image_bytes(self, names: Collection[str]) -> int:
        """The size of outputs on the device."""
        return sum(self.value_bytes(name) * prod(self.output_shapes[name]) for name in names)

    @abstractmethod
    def forward_bytes(self, outputs: Collection[str], *, retain: bool, device: torch.device) -> int:
        """About what a forward pass takes of the device's memory, its outputs and its state included."""

    @abstractmethod
    def backward_bytes(self, wanted: Collection[str], device: torch.device) -> int:
        """About what a backward pass takes beside the state, its gradients included."""

    def value_bytes(self, output: str) -> int:
        """The size of a value of an output: float32 or int32 unless an engine says otherwise."""
        return 4


P = TypeVar("P", bound=Plan)
In = TypeVar("In")


class Sized(Protocol):
    """Something that takes memory."""

    @property
    def bytes(self) -> int:
        """Memory it holds."""


class State(Sized, Protocol):
    """A forward that waits for its backward."""


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
    def touched(self) -> torch.Tensor | None:
        """By primitive, 0 where there is no gradient; None: no gradient has a row per primitive."""

    def stages(self) -> Mapping[str, float]:
        """Milliseconds by kernel stage."""


class Engine(Protocol[P, In]):
    """Runs kernels that answer requests, on the device's thread."""

    @property
    def name(self) -> str:
        """As metrics and callers hear of it."""

    def forward(
        self,
        plan: P,
        inputs: In,
        outputs: Sequence[str],
        *,
        retain: bool,
        before_view: Callable[[], object],
        into: Tensors | None = None,
    ) -> Forward:
        """Compute outputs, those that `into` has memory for in there if the engine can.

        `before_view` is called before each part of the work and may raise to end it.
        """

    def backward(
        self, state: Any, output_gradients: Tensors, wanted: Sequence[str], before_view: Callable[[], object]
    ) -> Backward:
        """Differentiate what was computed."""

    def joined(self, plans: Sequence[P], inputs: Sequence[In]) -> tuple[P, In]:
        """Forward passes of one kind and scene as one, whose outputs are theirs one after the other."""

    def shared(self, state: Any) -> Collection[Sized]:
        """What a state holds, and does not count, because others hold it too."""


class RenderEngine(Engine[P, Tensors], Protocol[P]):
    """Renders one kind of scene, after which it is called, as its field in `RenderSpec.settings`."""

    def plan(self, spec: render_pb2.RenderSpec, shapes: Shapes, limits: Limits, field: str) -> P:
        """Read and check a request; `field` is the path of the spec in it."""
