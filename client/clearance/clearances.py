"""Measures clearances of robots and spheres, and converts them to records for output."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lumigrad.client.base.arrays import Array, Float64
from lumigrad.client.client import Client
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.robots.motion import Motion
from lumigrad.client.values.mesh import Mesh, MeshReport
from lumigrad.client.values.world import World

PLACES = ("distance", "normal", "closest", "face", "obstacle", "beyond")
COSTS = ("cost", "gradient")
# Contact detection must not run out of samples earlier than the computation of costs.
_CONTACT_SAMPLES = 256


@dataclass(frozen=True)
class Question:
    """The settings of a measurement.

    Attributes:
        margin: clearance below which a sphere collides, metres, >= 0.
        costs: whether to also compute costs and their gradients.
        activation_distance: activation distance of costs, metres, see `DistanceSettings`.
        max_distance: search radius around centres, metres; None: unlimited.
        sweep: whether to also check between time steps.
    """

    margin: float = 0.0
    costs: bool = False
    activation_distance: float = 0.0
    max_distance: float | None = None
    sweep: bool = False


@dataclass(frozen=True, eq=False)
class Clearances:
    """The clearances of S spheres at T time steps.

    Attributes:
        motion: the spheres.
        question: the settings.
        obstacles: names of all obstacles, to which the indices in "obstacle" refer.
        arrays: the arrays [T, S, ...] of `Distances` by name: `PLACES`, and `COSTS` if requested.
        clearance: [T, S] distance of the sphere's surface, metres, negative inside; NaN for disabled spheres.
        collides: [T, S] whether the clearance is below the margin; in a sweep also halfway to the steps before and
            after.
        uncertain: [T, S] whether half of a segment touched nothing, but had too few samples to be certain.
        notes: remarks on meshes whose inside is not simply determined by the closest surface.
    """

    motion: Motion
    question: Question
    obstacles: tuple[str, ...]
    arrays: dict[str, Array]
    clearance: Float64
    collides: npt.NDArray[np.bool_]
    uncertain: npt.NDArray[np.bool_]
    notes: tuple[str, ...] = ()

    @staticmethod
    def measure(client: Client, world: World, motion: Motion, question: Question) -> Clearances:
        """Measures the clearances on a worker."""
        radii = motion.spheres[..., 3]
        _check(motion, question, float(radii.max()))
        handle, rows = client.put(world), motion.spheres.astype(np.float32)
        outputs = (*PLACES, *(COSTS if question.costs else ()))
        found = client.query(
            handle,
            rows,
            outputs=outputs,
            activation_distance=question.activation_distance,
            max_distance=question.max_distance,
            sweep=question.sweep and question.costs,
        )
        clearance = np.where(radii < 0, np.nan, found.distance - radii)
        # Beyond the search radius the distance is unknown.
        collides = (clearance < question.margin) & ~found.beyond
        uncertain = np.zeros_like(collides)
        if question.sweep:
            swept = client.query(
                handle,
                rows,
                outputs=("cost", "exhausted"),
                activation_distance=question.margin,
                max_distance=question.max_distance,
                sweep=True,
                samples=_CONTACT_SAMPLES,
            )
            collides |= swept.cost > 0
            uncertain = np.asarray(swept.exhausted & ~collides)
        notes = _notes(client, world)
        return Clearances(motion, question, world.names, dict(found), clearance, collides, uncertain, notes)

    @property
    def closest(self) -> tuple[int, int] | None:
        """The time step and sphere of the least clearance; None if all spheres are disabled."""
        if np.isnan(self.clearance).all():
            return None
        step, sphere = np.unravel_index(np.nanargmin(self.clearance), self.clearance.shape)
        return int(step), int(sphere)

    @property
    def least(self) -> Float64:
        """The least clearance [T] at each time step; NaN where all spheres are disabled."""
        filled = np.where(np.isnan(self.clearance), np.inf, self.clearance).min(axis=1)
        return np.where(np.isnan(self.clearance).all(axis=1), np.nan, filled)

    @property
    def is_free(self) -> bool:
        """Whether nothing collides and, in a sweep, no segment is uncertain."""
        return not (self.collides.any() or self.uncertain.any())

    def obstacle(self, step: int, sphere: int) -> str | None:
        """Returns the name of the closest obstacle, or None if none was found."""
        index = int(self.arrays["obstacle"][step, sphere])
        return None if index < 0 else self.obstacles[index]

    def name(self, sphere: int) -> str | None:
        """Returns the name of a sphere's link, or None if it has none."""
        return self.motion.names[sphere] if self.motion.names else None


def _notes(client: Client, world: World) -> tuple[str, ...]:
    """Returns the remarks in the worker's reports on meshes with the sign "auto", each mesh once."""
    names = {
        obstacle.mesh: name
        for obstacle, name in zip(world.obstacles, world.names, strict=True)
        if obstacle.sign == "auto"
    }
    notes = []
    for mesh, name in names.items():
        report = None if mesh is None else client.put(mesh).report
        if report is None:
            continue
        remarks = [report.remark] if report.remark else []
        if isinstance(mesh, Mesh) and _looks_in(mesh, report):
            remarks.append(_INWARD)
        if remarks:
            notes.append(f"{name}: {'; '.join(remarks)}")
    return tuple(notes)


def _check(motion: Motion, question: Question, largest_radius: float) -> None:
    if question.sweep and len(motion.spheres) < 2:
        raise InvalidArgument.of("sweep", "expected a trajectory of two or more time steps, got one; leave it out")
    needed = largest_radius + question.margin
    if question.max_distance is not None and question.max_distance < needed:
        raise InvalidArgument.of(
            "max_distance",
            f"expected at least the largest radius and the margin, {needed:g}, got {question.max_distance:g}; "
            "what touches a sphere would not be found",
        )


def nearest_spheres(clearances: Clearances, count: int) -> Sequence[int]:
    """Returns spheres that are closest at some time step: the one with the least clearance, then the most frequent."""
    least = np.where(np.isnan(clearances.clearance), np.inf, clearances.clearance)
    winners = least.argmin(axis=1)[np.isfinite(least.min(axis=1))]
    spheres, times = np.unique(winners, return_counts=True)
    order = np.lexsort((spheres, -times))
    ranked = [int(sphere) for sphere in spheres[order]]
    found = clearances.closest
    if found is not None and found[1] in ranked:
        ranked.remove(found[1])
        ranked.insert(0, found[1])
    return ranked[:count]


def summary(found: Clearances) -> dict[str, Any]:
    """Returns a summary as plain values; None where there is no value."""
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
        "notes": list(found.notes),
    }


def record(found: Clearances, step: int, sphere: int) -> dict[str, Any]:
    """Returns one sphere at one time step as plain values; None where nothing was found."""
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
    """Returns the records of all spheres, ordered by time step."""
    steps, spheres = found.clearance.shape
    return [record(found, step, sphere) for step in range(steps) for sphere in range(spheres)]


def arrays_of(found: Clearances) -> dict[str, Any]:
    """Returns the arrays of an .npz file: [T, S, ...], without T for a single time step, and names."""
    arrays: dict[str, Array] = {
        "spheres": found.motion.spheres.astype(np.float32),
        "clearance": found.clearance.astype(np.float32),
    }
    arrays |= {"collides": found.collides, "uncertain": found.uncertain, **found.arrays}
    if not found.motion.is_trajectory:
        arrays = {name: array[0] for name, array in arrays.items()}
    return arrays | {"obstacle_names": np.array(found.obstacles), "links": np.array(found.motion.names, dtype=str)}


def arrays_at(array: Any, step: int, sphere: int) -> list[float | None]:
    """Returns the values of one sphere at one time step."""
    return [_number(value) for value in array[step, sphere]]


def _number(value: Any) -> float | None:
    """Converts a number for JSON; infinity and NaN become None."""
    return float(value) if math.isfinite(value) else None


# An open surface encloses a space if the vector areas of its faces sum to less than this fraction of its area, and the
# space has more than this fraction of area^1.5.
_MOST_OPEN, _LEAST_SPACE = 0.6, 1e-3
_INWARD = "its faces look into what they nearly enclose, which counts as free: turn them unless it is a room"


def _looks_in(mesh: Mesh, report: MeshReport) -> bool:
    """Whether an open mesh of one part has its faces turned inward, once a fan of triangles closes its border."""
    if report.closed or report.components != 1 or report.nonmanifold_edges or report.inconsistent_edges:
        return False
    places, welded = np.unique(mesh.vertices.astype(np.float64), axis=0, return_inverse=True)
    corners = welded.reshape(-1)[mesh.faces]
    edges = np.sort(corners[:, [[0, 1], [1, 2], [2, 0]]].reshape(-1, 2), axis=1)
    pairs, counts = np.unique(edges, axis=0, return_counts=True)
    border = places[pairs[counts == 1]]
    lengths = np.linalg.norm(border[:, 1] - border[:, 0], axis=1)
    if not lengths.sum() > 0:
        return False
    centre = np.average(border.mean(axis=1), axis=0, weights=lengths)
    first, second, third = (places[corners[:, corner]] - centre for corner in range(3))
    normals = np.cross(second - first, third - first) / 2
    area = np.linalg.norm(normals, axis=1).sum()
    volume = (first * normals).sum() / 3
    return bool(np.linalg.norm(normals.sum(axis=0)) < _MOST_OPEN * area and volume < -_LEAST_SPACE * area**1.5)
