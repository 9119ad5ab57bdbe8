"""Rates of the mesh kernels in this process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from lumigrad.kernels import _native
from lumigrad.kernels.meshes import Instance, Mesh, Settings, World, evaluate
from lumigrad.kernels.meshes.engine import engine_for
from tests.benchmarks.meshes.scene import SPHERES, MeshScene


@dataclass(frozen=True)
class Rate:
    """A row of the results."""

    case: str
    op: str
    per_second: float
    best_per_second: float
    peer: dict[str, float] = field(default_factory=dict)


def rate(case: str, op: str, count: int, call: Callable[[], object], *, seconds: float = 1.5, least: int = 9) -> Rate:
    """Repeats a call until its time is known; `count` items are done by one call. The first two calls warm up."""
    call()
    call()
    times: list[float] = []
    until = time.perf_counter() + seconds
    while len(times) < least or (time.perf_counter() < until and len(times) < 2000):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return Rate(case, op, count / statistics.median(times), count / min(times))


def built(scene: MeshScene) -> Mesh:
    """The mesh of a scene."""
    return Mesh.build(torch.from_numpy(scene.vertices), torch.from_numpy(scene.faces))


def distance_rate(case: str, mesh: Mesh, points: NDArray[np.float64]) -> Rate:
    """Signed distance, gradient, closest point and face of points."""
    spheres = torch.zeros(1, 1, len(points), 4)
    spheres[0, 0, :, :3] = torch.from_numpy(points)
    world, outputs = World([Instance(mesh)]), ("distance", "normal", "closest", "face")
    return rate(case, "signed_distance", len(points), lambda: evaluate(spheres, world, Settings(), outputs=outputs))


def cost_rates(case: str, mesh: Mesh, spheres: NDArray[np.float32]) -> list[Rate]:
    """Costs and their gradients, static and swept with the speed metric, in cuRobo's and exact semantics."""
    world, rows = World([Instance(mesh)]), torch.from_numpy(spheres)
    rates = []
    for semantics in ("curobo", "exact"):
        near = {"semantics": semantics, "activation_distance": 0.025, "max_distance": 0.1}
        still = Settings(**near)  # type: ignore[arg-type]
        samples = 4 if semantics == "curobo" else 32
        swept = Settings(**near, sweep=True, samples=samples, speed_metric=True, time_step_s=0.02)  # type: ignore[arg-type]
        for op, settings in (("static", still), ("swept", swept)):
            call = _cost(rows, world, settings)
            rates.append(rate(case, f"cost {op} {semantics}", rows[..., 0].numel(), call))
    return rates


def robot_rates(case: str, mesh: Mesh, spheres: NDArray[np.float32]) -> list[Rate]:
    """Costs and gradients of the spheres of one robot, on one thread: the engine alone, and all of `evaluate`."""
    world, rows = World([Instance(mesh)]), torch.from_numpy(spheres[:1, :1].copy())
    settings = Settings(semantics="curobo", activation_distance=0.025, max_distance=0.1)
    engine = engine_for(rows.device)
    placed, results = world.placed(engine), {"cost": rows.new_empty(1, 1, SPHERES)}
    arrays = {"spheres": rows, "environments": None, **results, "jacobian": rows.new_empty(1, 1, SPHERES, 10)}
    threads = _native.thread_count()
    _native.set_thread_count(1)
    try:
        return [
            rate(case, "robot", SPHERES, lambda: engine.evaluate(placed, settings.native, arrays), least=200),
            rate(case, "robot, evaluate()", SPHERES, _cost(rows, world, settings, checked=True), least=200),
        ]
    finally:
        _native.set_thread_count(threads)


def build_rates(case: str, scene: MeshScene, mesh: Mesh) -> list[Rate]:
    """Registration with its whole report, and the same faces with other vertices."""
    vertices, faces = torch.from_numpy(scene.vertices), torch.from_numpy(scene.faces)
    moved = vertices * 1.01
    return [
        rate(case, "build", 1, lambda: Mesh.build(vertices, faces), least=5),
        rate(case, "refit", 1, lambda: mesh.moved(moved), least=5),
    ]


def _cost(rows: torch.Tensor, world: World, settings: Settings, *, checked: bool = False) -> Callable[[], object]:
    return lambda: evaluate(rows, world, settings, outputs=("cost", "gradient"), checked=checked)
