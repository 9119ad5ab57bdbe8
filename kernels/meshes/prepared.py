"""Queries that differ only in their spheres: checked and prepared once, and then answered without Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lumigrad.kernels import _native
from lumigrad.kernels.meshes.engine import CpuEngine, cuda_key
from lumigrad.kernels.meshes.evaluate import launches
from lumigrad.kernels.meshes.pose import MAX_COORDINATE
from lumigrad.kernels.meshes.settings import Settings
from lumigrad.kernels.meshes.world import World


@dataclass(frozen=True)
class Queries:
    """Engine that answers prepared queries on one device.

    Attributes:
        engine: The native engine.
        key: Key of the engine that `evaluate` uses on the device.
        device_type: "cpu" or "cuda".
    """

    engine: _native.DistanceEngine
    key: str
    device_type: str


def cpu_queries() -> Queries:
    """Return the engine that answers prepared queries on the CPU."""
    return Queries(_native.cpu_distances(), CpuEngine.key, "cpu")


def cuda_queries(native: Any, device: int, kernels: int, copies: int) -> Queries:
    """Return the engine that answers prepared queries on two streams of a CUDA device; `native` is the extension."""
    return Queries(native.cuda_distances(device, kernels, copies), cuda_key(native, device), "cuda")


def prepare(
    queries: Queries,
    world: World,
    settings: Settings,
    rows: Sequence[int],
    *,
    spheres: int,
    environments: int | None,
    places: Sequence[tuple[str, int]],
    payload_bytes: int,
    head: bytes,
    kind: int,
    cost_bytes: int,
) -> _native.DistanceQuery | None:
    """Prepares queries of a world that `evaluate` has queried before.

    Args:
        queries: The engine that answers.
        world: The shapes.
        settings: The settings of the query.
        rows: B, H and S.
        spheres: Offset of the spheres in a request's payload, bytes.
        environments: Offset of the environments; None: all trajectories are in environment 0.
        places: Names of outputs, each once and none per instance, and their offsets in a reply's payload.
        payload_bytes: The size of the reply's payload.
        head: The bytes of a reply before its payload.
        kind: Number by which the queue groups queries that take about the same time.
        cost_bytes: The memory that a query takes.

    Returns:
        The native query; None if one launch is not enough for it.
    """
    placed = world.placed_before(queries.key)
    # Only the shape matters, and whether the tensor is on the CPU.
    spheres_of = torch.empty((*rows, 4), device="cpu" if queries.device_type == "cpu" else "meta")
    parts = launches(spheres_of, len(world.instances), settings)
    if placed is None or len(parts) != 1:
        return None
    return _native.DistanceQuery(
        world=placed,
        settings=settings.native,
        weight=float(settings.weight),
        rows=rows,
        spheres=spheres,
        environments=environments,
        most_coordinate=MAX_COORDINATE,
        outputs=places,
        payload_bytes=payload_bytes,
        head=head,
        engine=queries.engine,
        kind=kind,
        bytes=cost_bytes,
    )
