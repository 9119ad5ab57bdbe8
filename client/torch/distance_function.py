"""The autograd node of a remote query of distances, on CPU tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from lumigrad.client.client import Client
from lumigrad.client.distance_query import DistanceQuery
from lumigrad.client.distances import Distances
from lumigrad.client.torch.graphs import first_order, is_last_pass, outside_graphs

# The differentiable inputs of the node, named as in the contract and in the order in which it takes them.
INPUTS = ("spheres", "poses", "weight")


@dataclass(frozen=True)
class DistanceCall:
    """All of a query that is not a tensor.

    Attributes:
        client: the way to the worker.
        query: what to ask; tensors replace its spheres, poses and weight.
        differentiable: the outputs through which gradients flow.
        retain: a backward will probably come.
        spread: several workers share the spheres.
    """

    client: Client
    query: DistanceQuery
    differentiable: frozenset[str]
    retain: bool
    spread: bool = False

    def ask(self, inputs: Sequence[torch.Tensor | None]) -> Distances:
        """Asks for CPU tensors, one for each of `INPUTS`."""
        spheres, poses, weight = (None if tensor is None else tensor.detach() for tensor in inputs)
        assert spheres is not None
        query = replace(self.query, spheres=spheres.numpy(), poses=None if poses is None else poses.numpy())
        if weight is not None:
            query = replace(query, settings=replace(query.settings, weight=float(weight)))
        return self.client.ask(query, retain=self.retain, spread=self.spread)


def ask_remotely(call: DistanceCall, inputs: Sequence[torch.Tensor | None]) -> dict[str, torch.Tensor]:
    """The outputs of `call` by name, part of the autograd graph.

    Args:
        call: what to ask.
        inputs: CPU float32 tensors, one for each of `INPUTS`: spheres [B, H, S, 4], poses [I, 7], weight []; None for
            those absent.
    """
    results = RemoteQuery.apply(call, *inputs)  # type: ignore[no-untyped-call]
    return dict(zip(call.query.outputs, results, strict=True))


class RemoteQuery(torch.autograd.Function):
    """Asks the worker; backward asks the same worker for the gradients that are needed, and no others."""

    @staticmethod
    def forward(ctx: Any, call: DistanceCall, *inputs: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        """Takes the tensors of `INPUTS`, None for those absent, and returns those of the query's outputs."""
        found = call.ask(inputs)
        outputs = call.query.outputs
        results = {name: torch.from_numpy(found[name]) for name in outputs}
        ctx.call, ctx.found = call, found
        # Saved only so that autograd notices when one is changed in place before backward.
        ctx.save_for_backward(*(tensor for tensor in inputs if tensor is not None))
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(results[name] for name in outputs if name not in call.differentiable))
        return tuple(results.values())

    @staticmethod
    @outside_graphs
    @first_order
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """Gradients for the inputs that require one."""
        _ = ctx.saved_tensors
        upstream = {
            name: gradient
            for name, gradient in zip(ctx.call.query.outputs, gradients, strict=True)
            if gradient is not None and name in ctx.call.differentiable
        }
        wanted = [name for name, needed in zip(INPUTS, ctx.needs_input_grad[1:], strict=True) if needed]
        if not upstream or not wanted:
            return (None,) * (1 + len(INPUTS))
        found = ctx.found.backward(**upstream, wanted=wanted, release=is_last_pass())
        return None, *(torch.from_numpy(found[name]) if name in wanted else None for name in INPUTS)
