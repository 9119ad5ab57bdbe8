"""Distance and cost queries."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lumigrad.kernels import _native
from lumigrad.kernels.buffers import empty
from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.meshes import sphere_gradient
from lumigrad.kernels.meshes.engine import Arrays, Engine, engine_for
from lumigrad.kernels.meshes.inputs import check_environments, check_spheres, check_values
from lumigrad.kernels.meshes.settings import Settings
from lumigrad.kernels.meshes.world import World
from lumigrad.kernels.stages import Stages, StageTimes
from lumigrad.kernels.steps import Steps, complete

BeforeLaunch = Callable[[], object]
# Rows times instances in a launch: at most about a second on one thread.
_WORK_AT_ONCE = 2**22
# Launches have at least this many rows, to keep a GPU or all threads of a CPU (one chunk each) busy. Large worlds have
# shorter chunks: see native/meshes/cpu/probes.h.
_CHUNK_ROWS = 512
_MANY_INSTANCES, _SHORT_CHUNK_ROWS = 4096, 128
_CUDA_ROWS = 2**15


@dataclass(frozen=True)
class Part:
    """The rows of one launch.

    Attributes:
        trajectories: Range along B.
        rows: Range within a single trajectory, along S, or along H and S flattened; None: all.
        of_spheres: Whether `rows` are along S.
        steps: With `of_spheres`, the range along H; None: all. The launch also sees the step before and after it.
    """

    trajectories: slice
    rows: slice | None = None
    of_spheres: bool = False
    steps: slice | None = None

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The part of a tensor [B], or [B, H, S, ...]; a view, of shape [B', H', S', ...]."""
        return self._view(tensor, self.steps)

    def seen(self, tensor: torch.Tensor) -> torch.Tensor:
        """The part of a tensor with the adjacent steps, where they exist."""
        steps = self.steps
        return self._view(tensor, None if steps is None else slice(max(0, steps.start - 1), steps.stop + 1))

    def written(self, seen: torch.Tensor) -> torch.Tensor:
        """The part itself, without the adjacent steps, of a result of `seen`; a view."""
        if self.steps is None or seen.dim() == 1:
            return seen
        first = min(1, self.steps.start)
        return seen[:, first : first + self.steps.stop - self.steps.start]

    def _view(self, tensor: torch.Tensor, steps: slice | None) -> torch.Tensor:
        part = tensor[self.trajectories]
        if part.dim() == 1 or self.rows is None:
            return part
        if not self.of_spheres:
            return part.flatten(1, 2)[:, None, self.rows]
        return part[:, slice(None) if steps is None else steps, self.rows]


def launches(spheres: torch.Tensor, instances: int, settings: Settings) -> list[Part]:
    """Splits spheres [B, H, S, 4] into launches: along B, and long trajectories along S and H.

    Sweeps and speeds link each step of a trajectory to the adjacent ones.
    """
    trajectories, horizon, count = spheres.shape[:3]
    if spheres.numel() == 0:
        return []
    chunk = _SHORT_CHUNK_ROWS if instances > _MANY_INSTANCES else _CHUNK_ROWS
    least = chunk * _native.thread_count() if spheres.device.type == "cpu" else _CUDA_ROWS
    rows = max(least, _WORK_AT_ONCE // max(1, instances))
    if horizon * count <= rows:
        step = rows // (horizon * count)
        return [Part(slice(first, first + step)) for first in range(0, trajectories, step)]
    is_linked = settings.sweep or settings.speed_metric
    pieces = _pieces(count, max(1, rows // horizon)) if is_linked else _pieces(horizon * count, rows)
    steps = _pieces(horizon, rows) if is_linked and horizon > rows else [None]
    return [
        Part(slice(one, one + 1), piece, is_linked, some)
        for one in range(trajectories)
        for piece in pieces
        for some in steps
    ]


def _pieces(length: int, most: int) -> list[slice | None]:
    return [slice(first, min(first + most, length)) for first in range(0, length, most)]


def run(
    engine: Engine,
    world: Any,
    native_settings: Any,
    arrays: Arrays,
    part: Part,
    written: Collection[str] = (),
    moments: torch.Tensor | None = None,
) -> StageTimes:
    """Launches a part of a query; writes to its rows of the arrays in `written`, and adds to `moments`."""
    seen = {name: part.seen(tensor) for name, tensor in arrays.items() if tensor is not None}
    pieces = {name: view.contiguous() for name, view in seen.items()}
    if part.steps is not None:
        # The rows of adjacent steps belong to other launches.
        pieces.update({name: torch.empty_like(pieces[name]) for name in written})
        if "upstream" in pieces:
            pieces["upstream"] = torch.zeros_like(pieces["upstream"])
            part.written(pieces["upstream"]).copy_(part.of(arrays["upstream"]))
    times = engine.evaluate(world, native_settings, {**pieces, "moments": moments})
    for name in written:
        if pieces[name] is not seen[name]:
            part.of(arrays[name]).copy_(part.written(pieces[name]))
    return times


@dataclass(frozen=True, eq=False)
class State:
    """State of an `evaluate` with `retain` that `backward` needs.

    Attributes:
        spheres: f32 [B, H, S, 4].
        world: The world.
        settings: The settings.
        environments: i32 [B] or None.
        per_instance: Whether distances have a last axis I.
        cost: f32 [B, H, S] without the weight; None: costs were not an output.
        jacobian: f32 [B, H, S, 10], if `cost` is set: d cost / d (centre before (3), own centre (3), centre after (3),
            radius).
        normal: f32 [B, H, S, 3] or [B, H, S, I, 3], d distance / d centre; None: distances were not an output.
        instance: i32 [B, H, S] or [B, H, S, I], if `normal` is set: the closest instance, or -1.
    """

    spheres: torch.Tensor
    world: World
    settings: Settings
    environments: torch.Tensor | None
    per_instance: bool
    cost: torch.Tensor | None
    jacobian: torch.Tensor | None
    normal: torch.Tensor | None
    instance: torch.Tensor | None

    @property
    def bytes(self) -> int:
        """Memory in use, excluding the world."""
        tensors = (self.spheres, self.environments, self.cost, self.jacobian, self.normal, self.instance)
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor is not None)


COSTS = ("cost", "gradient", "exhausted")
DISTANCES = ("distance", "normal", "closest", "face", "instance", "beyond")
OUTPUTS = (*COSTS, *DISTANCES)
_DTYPES = {"face": torch.int32, "instance": torch.int32, "beyond": torch.uint8, "exhausted": torch.uint8}
_LAST = {"normal": (3,), "closest": (3,), "jacobian": (10,)}


@dataclass(frozen=True)
class Evaluation:
    """Results of a query.

    Attributes:
        outputs: By name, for each sphere, float32 unless stated otherwise.
            "cost" [B, H, S], with the weight; "gradient" [B, H, S, 4], of the sum of all costs (with cuRobo's semantics
            with respect to the own centre only, and 0 for the radius); "exhausted" bool [B, H, S], true where half of a
            sweep found no contact but ran out of samples before it could exclude one.
            For the closest instance: "distance" [B, H, S], metres, from the sphere's centre, positive outside; "normal"
            [B, H, S, 3], its gradient; "closest" [B, H, S, 3], the closest point of the surface, world frame; "face"
            i32 [B, H, S], the face of a mesh, otherwise -1; "instance" i32 [B, H, S]; "beyond" bool [B, H, S], true
            where nothing is within `max_distance`. There, and for spheres that are off, distance is `max_distance` or
            infinity, normal is 0, closest is the centre, face and instance are -1. With `per_instance` each output has
            an axis I after S.
        state: For `backward`; None without `retain`.
        times: Time of each kernel stage.
    """

    outputs: dict[str, torch.Tensor]
    state: State | None
    times: Stages

    def stages(self) -> dict[str, float]:
        """Milliseconds per kernel stage; empty while a CUDA stream is still at work."""
        return self.times.milliseconds()


def evaluate(
    spheres: torch.Tensor,
    world: World,
    settings: Settings,
    *,
    environments: torch.Tensor | None = None,
    outputs: Sequence[str] = ("cost",),
    per_instance: bool = False,
    retain: bool = False,
    checked: bool = False,
    before_launch: BeforeLaunch | None = None,
) -> Evaluation:
    """Computes signed distances and collision costs of spheres to the shapes of a world.

    Args:
        spheres: f32 [B, H, S, 4] centre and radius, metres, in the world's frame: sphere s of time step h of trajectory
            b. A sphere of negative radius is off.
        world: The shapes.
        settings: The settings of the query.
        environments: i32 [B], the environment of each trajectory; None: 0.
        outputs: Names of the outputs to return, from `OUTPUTS`.
        per_instance: Return distances to every instance instead of the closest; excludes costs.
        retain: Keep the state that `backward` needs for these outputs.
        checked: Whether the caller has checked the values of spheres and environments (`check_values`); if so, spheres
            that are not finite are off.
        before_launch: Called before each launch, which covers some trajectories or a part of a long one, and a single
            instance with `per_instance`. An exception that it raises ends the call.

    Returns:
        The outputs.

    Raises:
        ArgumentError: An argument is invalid; the message names it.

    Example:
        mesh = meshes.Mesh.build(vertices, faces)
        world = meshes.World([meshes.Instance(mesh)])
        rows = torch.tensor([[[[0.0, 0.0, 2.0, 0.1]]]])
        found = meshes.evaluate(rows, world, meshes.Settings(activation_distance=5.0), outputs=("cost", "distance"))
        found.outputs["distance"]  # [1, 1, 1], metres
    """
    options = {"per_instance": per_instance, "retain": retain, "checked": checked}
    steps = evaluate_steps(spheres, world, settings, environments=environments, outputs=outputs, **options)
    return complete(steps, before_launch)


def evaluate_steps(
    spheres: torch.Tensor,
    world: World,
    settings: Settings,
    *,
    environments: torch.Tensor | None = None,
    outputs: Sequence[str] = ("cost",),
    per_instance: bool = False,
    retain: bool = False,
    checked: bool = False,
) -> Steps[Evaluation]:
    """Do what `evaluate` does in steps; between them other queries may run on the same thread."""
    if not isinstance(world, World):
        raise ArgumentError("world", "a World", type(world).__name__)
    if not isinstance(settings, Settings):
        raise ArgumentError("settings", "Settings", type(settings).__name__)
    rows = check_spheres(spheres, world)
    _check_outputs(outputs, per_instance)
    where = check_environments(environments, rows)
    if not checked:
        check_values(rows, where, world)
    inputs = {"spheres": rows, "environments": where}
    names = _native_names(outputs, retain)
    engine = engine_for(rows.device)
    ask = _each if per_instance else _together
    found, times = yield from ask(engine, world, settings, inputs, names)
    state = None
    if retain:
        kept = {name: found.get(name) for name in ("cost", "jacobian", "normal", "instance")}
        state = State(rows, world, settings, where, per_instance, **kept)
    return Evaluation({name: _output(name, found, settings, retain) for name in outputs}, state, times)


def _check_outputs(outputs: Sequence[str], per_instance: bool) -> None:
    allowed = DISTANCES if per_instance else OUTPUTS
    for name in outputs:
        if name not in OUTPUTS:
            raise ArgumentError("outputs", f"names of {OUTPUTS}", f"{name!r}")
        if name not in allowed:
            raise ArgumentError("outputs", f"names of {allowed} with per_instance", f"{name!r}")
    if not outputs:
        raise ArgumentError("outputs", f"at least one of {allowed}", "none")


def _native_names(outputs: Sequence[str], retain: bool) -> tuple[str, ...]:
    """Names of the arrays that the engine writes."""
    names = {name: None for name in outputs if name != "gradient"}
    if "gradient" in outputs:
        names["jacobian"] = None
    if retain and ("cost" in outputs or "gradient" in outputs):
        names.update(cost=None, jacobian=None)
    if retain and "distance" in outputs:
        names.update(normal=None, instance=None)
    return tuple(names)


def _together(
    engine: Engine,
    world: World,
    settings: Settings,
    inputs: Mapping[str, torch.Tensor | None],
    names: Sequence[str],
) -> Steps[tuple[dict[str, torch.Tensor], Stages]]:
    """Queries all instances together."""
    spheres, times = inputs["spheres"], Stages()
    assert spheres is not None
    found = {name: _allocate(name, spheres.shape[:3], spheres.device) for name in names}
    arrays = {name: tensor for name, tensor in {**inputs, **found}.items() if tensor is not None}
    for part in launches(spheres, len(world.instances), settings):
        yield
        times.views.append(run(engine, world.placed(engine), settings.native, arrays, part, found))
    return found, times


def _each(
    engine: Engine,
    world: World,
    settings: Settings,
    inputs: Mapping[str, torch.Tensor | None],
    names: Sequence[str],
) -> Steps[tuple[dict[str, torch.Tensor], Stages]]:
    """Queries one instance at a time; results have an axis I after S."""
    spheres, count, times = inputs["spheres"], len(world.instances), Stages()
    assert spheres is not None
    stacked = {name: _allocate(name, (count, *spheres.shape[:3]), spheres.device) for name in names}
    for index in range(count):
        found = {name: tensor[index] for name, tensor in stacked.items()}
        for part in launches(spheres, 1, settings):
            yield
            arrays = {**inputs, **found}
            times.views.append(run(engine, world.placed(engine, index), settings.native, arrays, part, found))
    return {name: tensor.movedim(0, 3).contiguous() for name, tensor in stacked.items()}, times


def _allocate(name: str, shape: Sequence[int], device: torch.device) -> torch.Tensor:
    return empty((*shape, *_LAST.get(name, ())), _DTYPES.get(name, torch.float32), device)


def _output(name: str, found: Mapping[str, torch.Tensor], settings: Settings, retain: bool) -> torch.Tensor:
    weight = float(settings.weight)
    if name == "gradient":
        return sphere_gradient.of_costs(found["jacobian"], weight, settings)
    tensor = found[name]
    if name == "cost" and weight != 1.0:
        return tensor * weight if retain else tensor.mul_(weight)
    return tensor.view(torch.bool) if tensor.dtype == torch.uint8 else tensor
