"""Runs a case on an engine: converts it to arguments of `lumigrad.kernels.meshes`, and results to arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from lumigrad.kernels.meshes import Cuboid, Instance, Mesh, Settings, World
from support.backends.mesh_engines import Engine
from support.meshes.case import CuboidShape, MeshCase, MeshShape, Shape
from support.meshes.spheres import tensor

DISTANCES = ("distance", "normal", "closest", "face", "instance", "beyond")
OUTPUTS = ("cost", "gradient", "exhausted", *DISTANCES)


@dataclass(frozen=True)
class Run:
    """The results, as arrays."""

    outputs: dict[str, NDArray[np.generic]]
    gradients: dict[str, NDArray[np.float32]]


def mesh_of(engine: Engine, shape: MeshShape) -> Mesh:
    """A mesh of float64 vertices."""
    return engine.mesh(torch.from_numpy(np.array(shape.vertices, np.float64)), torch.from_numpy(shape.faces))


def world_of(engine: Engine, case: MeshCase) -> World:
    """A case's obstacles; each shape is registered once."""
    made: dict[int, object] = {}

    def solid(shape: Shape) -> object:
        if id(shape) not in made:
            if isinstance(shape, MeshShape):
                made[id(shape)] = mesh_of(engine, shape)
            elif isinstance(shape, CuboidShape):
                made[id(shape)] = Cuboid(shape.size)
            else:
                made[id(shape)] = engine.grid(torch.from_numpy(shape.distances), shape.voxel_size)
        return made[id(shape)]

    instances = [
        Instance(solid(one.shape), one.pose, one.enabled, one.environment, one.sign)  # type: ignore[arg-type]
        for one in case.placed
    ]
    return World(instances, case.environments)


def settings_of(case: MeshCase, **changes: object) -> Settings:
    """A case's settings."""
    return Settings(**{**asdict(case.options), **changes})  # type: ignore[arg-type]


def run(
    engine: Engine,
    case: MeshCase,
    *,
    outputs: Sequence[str] = ("cost",),
    upstream: Mapping[str, ArrayLike] | None = None,
    wanted: Sequence[str] = ("spheres", "poses", "weight"),
    per_instance: bool = False,
    world: World | None = None,
    **changes: object,
) -> Run:
    """Evaluates, and differentiates if there are gradients of outputs; `world` in place of the case's own."""
    results, state = engine.evaluate(
        tensor(case.spheres), world if world is not None else world_of(engine, case), settings_of(case, **changes),
        environments=None if case.rows is None else torch.from_numpy(case.rows), outputs=outputs,
        per_instance=per_instance, retain=upstream is not None,
    )  # fmt: skip
    arrays = {name: value.numpy() for name, value in results.items()}
    if upstream is None:
        return Run(arrays, {})
    tensors = {name: tensor(np.asarray(value)) for name, value in upstream.items()}
    gradients = engine.backward(state, tensors, wanted)
    return Run(arrays, {name: value.numpy() for name, value in gradients.items()})


def with_options(case: MeshCase, **changes: object) -> MeshCase:
    """The case with other settings."""
    return replace(case, options=replace(case.options, **changes))  # type: ignore[arg-type]
