"""Clearances as records, for JSON and tables."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lumigrad.client.clearance.clearances import Clearances
from lumigrad.client.named_arrays import Array


def summary(found: Clearances) -> dict[str, Any]:
    """What matters of all, as plain values; None where there is none."""
    place = found.closest
    return {
        "spheres": found.clearance.shape[1],
        "steps": len(found.clearance) if found.motion.is_trajectory else None,
        "obstacles": list(found.obstacles),
        "margin": found.question.margin,
        "collides": bool(found.collides.any()),
        "free": found.is_free,
        "colliding_spheres": int(found.collides.any(axis=0).sum()),
        "colliding_steps": np.flatnonzero(found.collides.any(axis=1)).tolist() if found.motion.is_trajectory else None,
        "uncertain_steps": np.flatnonzero(found.uncertain.any(axis=1)).tolist() if found.question.sweep else None,
        "closest": None if place is None else record(found, *place),
    }


def record(found: Clearances, step: int, sphere: int) -> dict[str, Any]:
    """One sphere at one time step, as plain values; None where nothing was found."""
    arrays = found.arrays
    values: dict[str, Any] = {"step": step} if found.motion.is_trajectory else {}
    values |= {"sphere": sphere, "link": found.name(sphere)} if found.motion.names else {"sphere": sphere}
    nothing = found.obstacle(step, sphere) is None
    values |= {
        "center": arrays_at(found.motion.spheres[..., :3], step, sphere),
        "radius": float(found.motion.spheres[step, sphere, 3]),
        "clearance": _number(found.clearance[step, sphere]),
        "distance": _number(arrays["distance"][step, sphere]),
        "beyond": bool(arrays["beyond"][step, sphere]),
        "collides": bool(found.collides[step, sphere]),
        "obstacle": found.obstacle(step, sphere),
        "face": int(arrays["face"][step, sphere]) if arrays["face"][step, sphere] >= 0 else None,
        "closest": None if nothing else arrays_at(arrays["closest"], step, sphere),
        "normal": None if nothing else arrays_at(arrays["normal"], step, sphere),
    }
    if found.question.sweep:
        values["uncertain"] = bool(found.uncertain[step, sphere])
    if found.question.costs:
        values |= {
            "cost": _number(arrays["cost"][step, sphere]),
            "gradient": arrays_at(arrays["gradient"], step, sphere),
        }
    return values


def records(found: Clearances) -> list[dict[str, Any]]:
    """All, time step by time step."""
    steps, spheres = found.clearance.shape
    return [record(found, step, sphere) for step in range(steps) for sphere in range(spheres)]


def arrays_of(found: Clearances) -> dict[str, Any]:
    """For .npz files: [T, S, ...], without T for spheres that do not move, and names."""
    arrays: dict[str, Array] = {
        "spheres": found.motion.spheres.astype(np.float32),
        "clearance": found.clearance.astype(np.float32),
    }
    arrays |= {"collides": found.collides, "uncertain": found.uncertain, **found.arrays}
    if not found.motion.is_trajectory:
        arrays = {name: array[0] for name, array in arrays.items()}
    return arrays | {"obstacle_names": np.array(found.obstacles), "links": np.array(found.motion.names, dtype=str)}


def arrays_at(array: Any, step: int, sphere: int) -> list[float | None]:
    """The numbers of one sphere at one time step."""
    return [_number(value) for value in array[step, sphere]]


def _number(value: Any) -> float | None:
    """JSON knows neither infinity nor NaN."""
    return float(value) if math.isfinite(value) else None
