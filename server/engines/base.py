"""The interface between the services and the engines."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from lumigrad.kernels.stages import Stages
from lumigrad.kernels.steps import Steps, complete
from lumigrad.server.core.limits import Limits
from lumigrad.server.engines.content import Shapes, Tensors
from lumigrad.server.engines.requests import Plan
from lumigrad.v1 import render_pb2


class Sized(Protocol):
    """An object of known size."""

    @property
    def bytes(self) -> int:
        """The memory that it takes."""


class Forward(Protocol):
    """The result of a forward pass."""

    @property
    def outputs(self) -> Mapping[str, torch.Tensor]:
        """Output tensors by name."""

    @property
    def state(self) -> Sized | None:
        """The forward state; None if it was not retained."""

    @property
    def times(self) -> Stages:
        """The kernels' times, which can be read once they have ended."""


class Backward(Protocol):
    """The result of a backward pass."""

    @property
    def gradients(self) -> Mapping[str, torch.Tensor]:
        """Gradients by name."""

    @property
    def touched(self) -> torch.Tensor | None:
        """Per primitive, 0 if it has no gradient; None if no gradient has a row per primitive."""

    @property
    def times(self) -> Stages:
        """The kernels' times, which can be read once they have ended."""


class ForwardSteps(Protocol):
    """A forward pass in steps, between which other jobs may run."""

    def __call__(
        self, plan: Any, inputs: Any, outputs: Sequence[str], *, retain: bool, into: Tensors | None = None
    ) -> Steps[Forward]:
        """Compute outputs, into the tensors of `into` where the engine supports that: images, and its `levels`."""


# Computes the named gradients from a state and the output gradients; `Engine.rows` has those that `into` can take.
BackwardSteps = Callable[..., Steps[Backward]]


@dataclass(frozen=True)
class Engine:
    """The functions that run the kernels of one engine on the device's thread.

    Attributes:
        name: The engine's name in metrics and messages.
        batched: Combines several plans of one kind and scene, and their inputs; outputs of the result are concatenated.
        shared: The parts that a state shares with other states and does not count.
        levels: The images that a forward pass writes as uint8 levels if `into` has uint8 tensors for them.
        rows: The shapes of the gradients of a state that a backward pass can write into an argument `into`.
        skips_untouched: Whether a backward pass has an argument `touched_only`, which leaves rows without a gradient
            undefined.
    """

    name: str
    forward_steps: ForwardSteps
    backward_steps: BackwardSteps
    batched: Callable[[Sequence[Any], Sequence[Any]], tuple[Plan, Any]]
    shared: Callable[[Any], Collection[Sized]] = lambda _: ()
    levels: Collection[str] = ()
    rows: Callable[[Any], Shapes] = lambda _: {}
    skips_untouched: bool = False

    def forward(
        self,
        plan: Any,
        inputs: Any,
        outputs: Sequence[str],
        *,
        retain: bool,
        before_view: Callable[[], object],
        into: Tensors | None = None,
    ) -> Forward:
        """Run a whole forward pass; `before_view` is called before each step and may raise to stop it."""
        return complete(self.forward_steps(plan, inputs, outputs, retain=retain, into=into), before_view)

    def backward(
        self, state: Any, output_gradients: Tensors, wanted: Sequence[str], before_view: Callable[[], object]
    ) -> Backward:
        """Run a whole backward pass; `before_view` is called before each step and may raise to stop it."""
        return complete(self.backward_steps(state, output_gradients, wanted), before_view)


def joined_views(plans: Sequence[Any]) -> Plan:
    """Return a plan with the views of several plans of one kind for one scene."""
    views = sum(plan.views for plan in plans)
    joined: Plan = replace(
        plans[0],
        cameras=[camera for plan in plans for camera in plan.cameras],
        output_shapes={name: [views, *shape[1:]] for name, shape in plans[0].output_shapes.items()},
        views=views,
        fill=sum(plan.fill for plan in plans),
    )
    return joined


def batched_views(plans: Sequence[Any], inputs: Sequence[Any]) -> tuple[Plan, Any]:
    """Concatenate the views of several calls for one scene."""
    return joined_views(plans), inputs[0]


@dataclass(frozen=True, kw_only=True)
class RenderEngine(Engine):
    """Renders one kind of scene; it is named like the kind and its field in `RenderSpec.settings`.

    Attributes:
        plan: Checks a request; the last argument is the path of its spec. Raises InvalidArgumentError.
    """

    plan: Callable[[render_pb2.RenderSpec, Shapes, Limits, str], Plan]
    batched: Callable[[Sequence[Any], Sequence[Any]], tuple[Plan, Any]] = batched_views
