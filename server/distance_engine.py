"""The mesh kernels, as the services see them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from lumigrad.kernels import meshes
from lumigrad.server.content import Tensors
from lumigrad.server.distance_plan import DistancePlan, kernel_name
from lumigrad.server.mesh_scene import ENGINE


@dataclass(frozen=True)
class DistanceInputs:
    """What a query is about.

    Attributes:
        world: The obstacles.
        tensors: By name "spheres" and, if there are several, "environments".
    """

    world: meshes.World
    tensors: Tensors


@dataclass(frozen=True)
class _Forward:
    """What a query returns, by the names that callers know."""

    outputs: Mapping[str, torch.Tensor]
    evaluation: meshes.Evaluation

    @property
    def state(self) -> meshes.State | None:
        """If it was to be retained."""
        return self.evaluation.state

    def stages(self) -> Mapping[str, float]:
        """Milliseconds by kernel stage."""
        return self.evaluation.stages()


@dataclass(frozen=True)
class _Backward:
    """Gradients, none of which has a row per primitive."""

    gradients: Mapping[str, torch.Tensor]
    stages: Callable[[], Mapping[str, float]]
    touched = None


class DistanceEngine:
    """Asks how far spheres are from obstacles, and what that costs."""

    name = ENGINE

    def forward(
        self,
        plan: DistancePlan,
        inputs: DistanceInputs,
        outputs: Sequence[str],
        *,
        retain: bool,
        before_view: Callable[[], object],
        into: Tensors | None = None,
    ) -> _Forward:
        """Compute distances and costs, in memory of their own."""
        found = meshes.evaluate(
            inputs.tensors["spheres"],
            inputs.world,
            plan.settings,
            environments=inputs.tensors.get("environments"),
            outputs=[kernel_name(name) for name in outputs],
            per_instance=plan.per_obstacle,
            retain=retain,
            before_launch=before_view,
        )
        return _Forward({name: found.outputs[kernel_name(name)] for name in outputs}, found)

    def backward(
        self,
        state: meshes.State,
        output_gradients: Tensors,
        wanted: Sequence[str],
        before_view: Callable[[], object],
    ) -> _Backward:
        """Differentiate a query."""
        result = meshes.backward(state, output_gradients, wanted, before_launch=before_view)
        return _Backward(result.gradients, result.stages)

    def joined(
        self, plans: Sequence[DistancePlan], inputs: Sequence[DistanceInputs]
    ) -> tuple[DistancePlan, DistanceInputs]:
        """All trajectories before the one world."""
        names = inputs[0].tensors
        tensors = {name: torch.cat([one.tensors[name] for one in inputs]) for name in names}
        return plans[0], DistanceInputs(inputs[0].world, tensors)

    def shared(self, state: meshes.State) -> list[meshes.Shape]:
        """The shapes of the world: those of a mesh that has moved on since may be of no use to anybody else."""
        shapes = {id(instance.shape): instance.shape for instance in state.world.instances}
        return [shape for shape in shapes.values() if not isinstance(shape, meshes.Cuboid)]
