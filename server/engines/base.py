"""What the services know of an engine, and what it knows of a call."""

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

    def batched(self, plans: Sequence[P], inputs: Sequence[In]) -> tuple[P, In]:
        """One forward pass for several plans of one kind and scene; its outputs are theirs, concatenated."""

    def shared(self, state: Any) -> Collection[Sized]:
        """What a state holds, and does not count, because others hold it too."""


class RenderEngine(Engine[P, Tensors], Protocol[P]):
    """Renders one kind of scene, after which it is called, as its field in `RenderSpec.settings`."""

    def plan(self, spec: render_pb2.RenderSpec, shapes: Shapes, limits: Limits, field: str) -> P:
        """Read and check a request; `field` is the path of the spec in it."""
