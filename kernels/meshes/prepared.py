"""Queries that differ in their spheres only: checked and prepared once, and then answered without Python."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lumigrad.kernels import _native
from lumigrad.kernels.meshes.evaluate import launches
from lumigrad.kernels.meshes.pose import MAX_COORDINATE
from lumigrad.kernels.meshes.settings import Settings
from lumigrad.kernels.meshes.world import World

CPU = "cpu"


def prepare(
    engine: _native.DistanceEngine,
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
        engine: Of the device.
        world: The shapes.
        settings: The settings of the query.
        rows: B, H and S.
        spheres: Where a request's payload has them, bytes.
        environments: Likewise; None: all trajectories are in environment 0.
        places: Names of outputs, each once and none of one instance alone, and their offsets in a reply's payload.
        payload_bytes: The size of that payload.
        head: The bytes of a reply before its payload.
        kind: Number of the queue for what takes about the same time.
        cost_bytes: The memory that a query takes.

    Returns:
        The native query; None if one launch is not enough for it.
    """
    placed = world.placed_before(CPU)
    parts = launches(torch.empty((*rows, 4)), len(world.instances), settings)
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
        engine=engine,
        kind=kind,
        bytes=cost_bytes,
    )
