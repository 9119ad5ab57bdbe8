"""The engine of distances: checks requests and runs the kernels."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch

from lumigrad.kernels import meshes
from lumigrad.kernels.stages import Stages
from lumigrad.kernels.steps import Steps
from lumigrad.protos import dtypes
from lumigrad.protos.tensors import extent
from lumigrad.server.core.limits import Limits, arguments_of, known, names_of, require
from lumigrad.server.engines.base import Engine
from lumigrad.server.engines.content import Outline, Shapes, Tensors, check_shape, check_type
from lumigrad.server.engines.requests import Plan, checked_outputs, given_settings
from lumigrad.v1 import distance_pb2, tensor_pb2

SEMANTICS = names_of(distance_pb2.DistanceSemantics)
_REDUCTIONS = names_of(distance_pb2.Reduction)
# The name of the engine in messages, logs and metrics.
ENGINE = "meshes"
# The kernels' names of outputs that are named differently in the protocol.
_KERNEL_NAMES = {"obstacle": "instance"}
_CALLER_NAMES = {kernel: caller for caller, kernel in _KERNEL_NAMES.items()}
_VECTORS = {"gradient": 4, "normal": 3, "closest": 3}


def kernel_name(output: str) -> str:
    """Return the kernels' name of an output."""
    return _KERNEL_NAMES.get(output, output)


_DISTANCES = tuple(_CALLER_NAMES.get(name, name) for name in meshes.DISTANCES)
_OUTPUTS = (*meshes.COSTS, *_DISTANCES)
_BOOLEANS = ("beyond", "exhausted")
# Bytes per sphere: workspace, derivatives of its cost, and backward pass.
_ROW_BYTES = 21
_JACOBIAN_BYTES = 44
_BACKWARD_BYTES = 16


@dataclass(frozen=True, kw_only=True)
class DistancePlan(Plan):
    """A checked query, without the world.

    Attributes:
        per_obstacle: Whether distances are returned for each obstacle.
        tensors: The spheres and, if there are several environments, the environment of each trajectory.
        poses: Poses for this call; None for those of the world.
    """

    settings: meshes.Settings
    per_obstacle: bool
    tensors: Mapping[str, tensor_pb2.Tensor]
    poses: tensor_pb2.Tensor | None

    @property
    def request_tensors(self) -> Mapping[str, tensor_pb2.Tensor]:
        """The spheres, and the environment of each trajectory."""
        return self.tensors

    def forward_bytes(self, outputs: Collection[str], *, retain: bool, device: torch.device) -> int:
        """Estimate the device memory of a query in bytes."""
        kept = {*outputs} | ({"normal", "obstacle"} if retain and "distance" in outputs else set())
        with_costs = not {"cost", "gradient"}.isdisjoint(outputs)
        size = self.count * (_ROW_BYTES + (_JACOBIAN_BYTES if with_costs else 0)) + self.image_bytes(kept)
        # Distances to each obstacle are transposed at the end.
        return size + (self.image_bytes(outputs) if self.per_obstacle else 0)

    def backward_bytes(self, wanted: Collection[str], device: torch.device) -> int:
        """Estimate the device memory of a backward pass in bytes."""
        return self.count * _BACKWARD_BYTES + 4 * sum(self.gradient_sizes[name] for name in wanted)

    def value_bytes(self, output: str) -> int:
        """Return the bytes of one value of an output."""
        return 1 if output in _BOOLEANS else super().value_bytes(output)


def distance_plan(spec: distance_pb2.DistanceSpec, outline: Outline, limits: Limits, field: str) -> DistancePlan:
    """Check a query of a world; `field` is the path of the spec in the request. Raises InvalidArgumentError."""
    rows = _rows(spec, limits, field)
    shapes = _output_shapes(rows, outline.obstacles if spec.per_obstacle else None)
    poses = spec.poses if spec.HasField("poses") else None
    if poses is not None:
        check_type(poses, f"{field}.poses")
        check_shape(poses.shape, [outline.obstacles, 7], f"{field}.poses")
    settings = _settings(spec.settings, f"{field}.settings")
    sizes = {"spheres": 4 * prod(rows), "poses": 7 * outline.obstacles, "weight": 1}
    # cuRobo's semantics have gradients only of costs, and only with respect to centres.
    given, wanted = (("cost", "distance"), sizes) if settings.exact else (("cost",), ("spheres", "weight"))
    return DistancePlan(
        outputs=checked_outputs(spec, tuple(shapes), field, "distance", " with per_obstacle" * spec.per_obstacle),
        output_shapes=shapes,
        upstream_shapes={name: shapes[name] for name in given if name in shapes},
        gradient_sizes={name: sizes[name] for name in wanted},
        default_wanted=("spheres",),
        row_gradients=(),
        count=prod(rows),
        views=1,
        kind=None if poses is not None else (_alike(spec), tuple(rows)),
        fill=max(1 / limits.batch_views, prod(rows) / limits.rows),
        settings=settings,
        per_obstacle=spec.per_obstacle,
        tensors={name: getattr(spec, name) for name in ("spheres", "environments") if spec.HasField(name)},
        poses=poses,
    )


def _alike(spec: distance_pb2.DistanceSpec) -> tuple[object, ...]:
    """Return the key that queries of one batch share."""
    settings = spec.settings.SerializeToString(deterministic=True)
    return settings, tuple(spec.outputs), spec.per_obstacle, spec.HasField("environments")


def _rows(spec: distance_pb2.DistanceSpec, limits: Limits, field: str) -> list[int]:
    """Check and return the sizes B, H, S of the spheres."""
    where = f"{field}.spheres"
    require(spec.HasField("spheres"), where, "a tensor", "none")
    check_type(spec.spheres, where)
    shape = list(spec.spheres.shape)
    require(len(shape) == 4 and shape[3] == 4, f"{where}.shape", "[B, H, S, 4]", shape)
    rows = shape[:3]
    limit = f"at most {limits.rows} spheres in all (the worker's --max-rows)"
    require(extent(rows) <= limits.rows, where, limit, extent(rows))
    if spec.HasField("environments"):
        tensor, where = spec.environments, f"{field}.environments"
        check_type(tensor, where, dtypes.INT32)
        check_shape(tensor.shape, rows[:1], where)
    return rows


def _output_shapes(rows: list[int], obstacles: int | None) -> Shapes:
    """Return the shapes of all outputs; `obstacles` is their number if distances are per obstacle."""
    names, lead = (_OUTPUTS, rows) if obstacles is None else (_DISTANCES, [*rows, obstacles])
    return {name: [*lead, _VECTORS[name]] if name in _VECTORS else lead for name in names}


def _settings(message: distance_pb2.DistanceSettings, field: str) -> meshes.Settings:
    semantics = known(SEMANTICS, message.semantics, f"{field}.semantics")
    reduction = known(_REDUCTIONS, message.reduction, f"{field}.reduction")
    given = given_settings(message)
    if "time_step" in given:
        given["time_step_s"] = given.pop("time_step")
    with arguments_of(field, {"time_step_s": f"{field}.time_step"}):
        return meshes.Settings(
            semantics=semantics,
            activation_distance=message.activation_distance,
            sweep=message.sweep,
            speed_metric=message.speed_metric,
            reduction=reduction,
            **given,
        )


@dataclass(frozen=True)
class DistanceInputs:
    """The inputs of a query.

    Attributes:
        world: The obstacles.
        tensors: "spheres" and, if there are several environments, "environments".
    """

    world: meshes.World
    tensors: Tensors


@dataclass(frozen=True)
class _Forward:
    """The result of a query, by the protocol's names."""

    outputs: Mapping[str, torch.Tensor]
    evaluation: meshes.Evaluation

    @property
    def state(self) -> meshes.State | None:
        """The forward state; None if it was not retained."""
        return self.evaluation.state

    @property
    def times(self) -> Stages:
        """The kernels' times."""
        return self.evaluation.times


@dataclass(frozen=True)
class _Backward:
    """Gradients, none of which has a row per primitive."""

    gradients: Mapping[str, torch.Tensor]
    times: Stages
    touched = None


def _forward_steps(
    plan: DistancePlan, inputs: DistanceInputs, outputs: Sequence[str], *, retain: bool, into: Tensors | None = None
) -> Steps[_Forward]:
    """Compute distances and costs; `into` is not used."""
    found = yield from meshes.evaluate_steps(
        inputs.tensors["spheres"],
        inputs.world,
        plan.settings,
        environments=inputs.tensors.get("environments"),
        outputs=[kernel_name(name) for name in outputs],
        per_instance=plan.per_obstacle,
        retain=retain,
    )
    return _Forward({name: found.outputs[kernel_name(name)] for name in outputs}, found)


def _backward_steps(state: meshes.State, output_gradients: Tensors, wanted: Sequence[str]) -> Steps[_Backward]:
    result = yield from meshes.backward_steps(state, output_gradients, wanted)
    return _Backward(result.gradients, result.times)


def _batched(plans: Sequence[DistancePlan], inputs: Sequence[DistanceInputs]) -> tuple[DistancePlan, DistanceInputs]:
    """Concatenate the trajectories of queries of one world."""
    tensors = {name: torch.cat([one.tensors[name] for one in inputs]) for name in inputs[0].tensors}
    return plans[0], DistanceInputs(inputs[0].world, tensors)


def _shared(state: meshes.State) -> list[meshes.Shape]:
    """Return the shapes of the world; after an update of the world, this state may be the last to use them."""
    shapes = {id(instance.shape): instance.shape for instance in state.world.instances}
    return [shape for shape in shapes.values() if not isinstance(shape, meshes.Cuboid)]


DISTANCES = Engine(ENGINE, _forward_steps, _backward_steps, _batched, _shared)
