"""The interface between the services and the engines."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import torch

from lumigrad.server.core.limits import Limits
from lumigrad.server.engines.content import Shapes, Tensors
from lumigrad.server.engines.requests import Plan
from lumigrad.v1 import render_pb2

P = TypeVar("P", bound=Plan)
In = TypeVar("In")


class Sized(Protocol):
    """An object of known size."""

    @property
    def bytes(self) -> int:
        """The memory that it takes."""


class State(Sized, Protocol):
    """The state that a forward pass keeps for its backward pass."""


class Forward(Protocol):
    """The result of a forward pass."""

    @property
    def outputs(self) -> Mapping[str, torch.Tensor]:
        """Output tensors by name."""

    @property
    def state(self) -> State | None:
        """The forward state; None: it was not retained."""

    def stages(self) -> Mapping[str, float]:
        """Milliseconds by kernel stage."""


class Backward(Protocol):
    """The result of a backward pass."""

    @property
    def gradients(self) -> Mapping[str, torch.Tensor]:
        """Gradients by name."""

    @property
    def touched(self) -> torch.Tensor | None:
        """Per primitive, 0 where it has no gradient; None: no gradient has a row per primitive."""

    def stages(self) -> Mapping[str, float]:
        """Milliseconds by kernel stage."""


class Engine(Protocol[P, In]):
    """Runs the kernels of one engine on the device's thread."""

    @property
    def name(self) -> str:
        """The engine's name in metrics and messages."""

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
        """Compute outputs, into the tensors of `into` where the engine supports that.

        `before_view` is called before each part of the work and may raise to stop it.
        """

    def backward(
        self, state: Any, output_gradients: Tensors, wanted: Sequence[str], before_view: Callable[[], object]
    ) -> Backward:
        """Compute the gradients `wanted` from those of the outputs."""

    def batched(self, plans: Sequence[P], inputs: Sequence[In]) -> tuple[P, In]:
        """One forward pass for several plans of one kind and scene; its outputs are theirs, concatenated."""

    def shared(self, state: Any) -> Collection[Sized]:
        """The parts that a state shares with others and does not count."""


class RenderEngine(Engine[P, Tensors], Protocol[P]):
    """Renders one kind of scene; its name is that of the kind and of its field in `RenderSpec.settings`."""

    def plan(self, spec: render_pb2.RenderSpec, shapes: Shapes, limits: Limits, field: str) -> P:
        """Check a request; `field` is the path of the spec in it. Raises InvalidArgumentError."""
