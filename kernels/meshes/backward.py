"""The backward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.meshes import sphere_gradient
from lumigrad.kernels.meshes.engine import engine_for
from lumigrad.kernels.meshes.evaluate import BeforeLaunch, State
from lumigrad.kernels.meshes.pose_sums import PoseSums, of_costs, of_distances
from lumigrad.kernels.stages import Stages
from lumigrad.kernels.steps import Steps, complete

GRADIENTS = ("spheres", "poses", "weight")


@dataclass(frozen=True)
class Backward:
    """Results of a backward pass.

    Attributes:
        gradients: By name, float32: "spheres" [B, H, S, 4], centres and radii; "poses" [I, 7], on the CPU, including
            the derivative of the quaternions' normalisation, 0 for disabled instances; "weight" [].
        times: Time of each kernel stage.
    """

    gradients: dict[str, torch.Tensor]
    times: Stages

    def stages(self) -> dict[str, float]:
        """Milliseconds per kernel stage; empty while a CUDA stream is still at work."""
        return self.times.milliseconds()


def backward(
    state: State,
    output_gradients: Mapping[str, torch.Tensor],
    wanted: Sequence[str] = GRADIENTS,
    before_launch: BeforeLaunch | None = None,
) -> Backward:
    """Differentiates costs and distances.

    With "exact" semantics these are the true derivatives, including those with respect to the spheres of adjacent time
    steps. With cuRobo's semantics the gradients of costs with respect to spheres are cuRobo's: a cost depends on the
    centre of its own time step only.

    Args:
        state: The state of an `evaluate` with `retain`.
        output_gradients: dL/d output by name, f32: "cost" [B, H, S] if "cost" or "gradient" was an output, "distance"
            [B, H, S], or [B, H, S, I] with `per_instance`, if "distance" was. dL/d distance is ignored where the query
            found nothing.
        wanted: Names of the gradients to compute, from `GRADIENTS`. "poses" needs another pass over the meshes.
        before_launch: Called before each launch of that pass; an exception that it raises ends the call.

    Returns:
        The gradients.

    Raises:
        ArgumentError: A name is unknown, or a tensor has the wrong shape, type or device.

    Example:
        found = meshes.evaluate(rows, world, meshes.Settings(activation_distance=5.0), retain=True)
        gradients = meshes.backward(found.state, {"cost": torch.ones(1, 1, 1)}, ("spheres",)).gradients
    """
    return complete(backward_steps(state, output_gradients, wanted), before_launch)


def backward_steps(
    state: State, output_gradients: Mapping[str, torch.Tensor], wanted: Sequence[str] = GRADIENTS
) -> Steps[Backward]:
    """Do what `backward` does in steps; between them other queries may run on the same thread."""
    if not isinstance(state, State):
        raise ArgumentError("state", "the state of an evaluate with retain=True", type(state).__name__)
    unknown = [name for name in wanted if name not in GRADIENTS]
    if unknown:
        raise ArgumentError("wanted", f"names of {GRADIENTS}", f"{unknown[0]!r}")
    upstream = _check_upstream(state, output_gradients)
    if "distance" in upstream:
        assert state.instance is not None
        upstream["distance"] = torch.where(state.instance >= 0, upstream["distance"], 0.0)
    gradients: dict[str, torch.Tensor] = {}
    times = Stages()
    if "spheres" in wanted:
        gradients["spheres"] = _spheres(state, upstream)
    if "poses" in wanted:
        gradients["poses"] = yield from _poses(state, upstream, times)
    if "weight" in wanted:
        gradients["weight"] = _weight(state, upstream)
    return Backward(gradients, times)


def _spheres(state: State, upstream: Mapping[str, torch.Tensor]) -> torch.Tensor:
    parts = []
    if "cost" in upstream:
        assert state.jacobian is not None
        scale = _weighted(state, upstream["cost"])
        parts.append(sphere_gradient.of_costs(state.jacobian, scale, state.settings))
    if "distance" in upstream:
        assert state.normal is not None
        parts.append(sphere_gradient.of_distances(state.normal, upstream["distance"]))
    return parts[0] if len(parts) == 1 else parts[0] + parts[1]


def _poses(state: State, upstream: Mapping[str, torch.Tensor], times: Stages) -> Steps[torch.Tensor]:
    sums = PoseSums.none(len(state.world.instances))
    if "cost" in upstream:
        engine = engine_for(state.spheres.device)
        sums = sums + (yield from of_costs(state, _weighted(state, upstream["cost"]), engine, times))
    if "distance" in upstream:
        sums = sums + of_distances(state, upstream["distance"])
    return torch.from_numpy(np.ascontiguousarray(sums.gradient(state.world), np.float32))


def _weight(state: State, upstream: Mapping[str, torch.Tensor]) -> torch.Tensor:
    if "cost" not in upstream:
        return torch.zeros((), device=state.spheres.device)
    assert state.cost is not None
    return torch.sum(upstream["cost"] * state.cost, dtype=torch.float64).float()


def _weighted(state: State, upstream: torch.Tensor) -> torch.Tensor:
    weight = float(state.settings.weight)
    return upstream if weight == 1.0 else upstream * weight


def _check_upstream(state: State, given: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    shape = tuple(state.spheres.shape[:3])
    allowed: dict[str, tuple[int, ...]] = {}
    if state.jacobian is not None:
        allowed["cost"] = shape
    # A query for normals alone does not find out which spheres found nothing.
    if state.normal is not None and state.instance is not None:
        allowed["distance"] = (*shape, len(state.world.instances)) if state.per_instance else shape
    checked, device = {}, state.spheres.device
    for name, tensor in given.items():
        if name not in allowed:
            names = " and ".join(allowed) or "none, since it retained neither distances nor costs"
            raise ArgumentError("output_gradients", f"outputs that this query retained: {names}", f"{name!r}")
        fits = isinstance(tensor, torch.Tensor) and tensor.shape == allowed[name] and tensor.dtype == torch.float32
        if not fits or tensor.device != device:
            expected = f"a float32 tensor of shape {list(allowed[name])} on {device}"
            actual = f"{tensor.dtype} {list(tensor.shape)} on {tensor.device}" if hasattr(tensor, "shape") else "none"
            raise ArgumentError(f"output_gradients['{name}']", expected, actual)
        checked[name] = tensor.detach().contiguous()
    if not checked:
        raise ArgumentError("output_gradients", f"at least one of {', '.join(allowed)}", "none")
    return checked
