"""Queries of distances, as the operators make them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lumigrad.client.base.arrays import Array
from lumigrad.client.client import Client
from lumigrad.client.distances.answer import Distances
from lumigrad.client.distances.query import DistanceQuery, Surroundings, environment_numbers
from lumigrad.client.operators.call import RemoteCall
from lumigrad.client.settings.distances import DistanceSettings

OUTPUTS = ("cost", "distance")


@dataclass(frozen=True)
class DistanceCall(RemoteCall):
    """A query; see `RemoteCall`.

    The inputs are spheres [B, H, S, 4], poses [I, 7] and weight [], float32.

    Attributes:
        client: the way to the worker.
        world: what spheres may be near. Calls are compared without it.
        settings: what a cost is; the input `weight` replaces what it says.
        outputs: what to compute.
        environments: [B] the environment that each trajectory sees, or one for all; None: 0.
        spread: several workers share the spheres.
    """

    client: Client
    world: Surroundings = field(compare=False)
    settings: DistanceSettings
    outputs: tuple[str, ...]
    environments: Any = None
    spread: bool = False

    @property
    def differentiable(self) -> frozenset[str]:
        """Outputs through which gradients flow."""
        return frozenset(OUTPUTS if self.settings.semantics == "exact" else ("cost",))

    @property
    def without_gradient(self) -> frozenset[str]:
        """In cuRobo's semantics poses have none."""
        return frozenset(() if self.settings.semantics == "exact" else ("poses",))

    def run(self, inputs: Mapping[str, Array | None], retain: bool) -> Distances:
        """Asks the worker."""
        spheres, poses, weight = inputs["spheres"], inputs["poses"], inputs["weight"]
        assert spheres is not None
        settings = self.settings if weight is None else replace(self.settings, weight=float(weight))
        environments = environment_numbers(self.environments, len(spheres))
        query = DistanceQuery(self.world, spheres, 3, settings, self.outputs, environments, poses)
        return self.client.ask(query, retain=retain, spread=self.spread)
