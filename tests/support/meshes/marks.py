"""Tolerances of the mesh engine's results, output gradients, and cached references of the cases."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from support.meshes.case import Doubles, GridShape, MeshCase, MeshShape
from support.meshes.reference import ExactScene
from support.meshes.reference_curobo import CuroboScene
from support.meshes.spheres import random_of

# Tolerance of distances in metres, for cases up to about a metre in size; relative to the size of larger ones.
DISTANCE = 1e-6
# Tolerance of directions; where the closest points of two faces are equally far up to rounding, either is valid.
DIRECTION = 1e-3
GRADIENT = 1e-4


def size_of(case: MeshCase) -> float:
    """The largest length in the case in metres, at least 1."""
    sizes = [1.0, float(np.abs(case.spheres).max(initial=0.0))]
    for one in case.placed:
        sizes.append(float(np.abs(one.pose[:3]).max()))
        if isinstance(one.shape, MeshShape):
            # Meshes are searched relative to their centres.
            sizes.append(float(np.ptp(one.shape.vertices, axis=0).max()))
        elif isinstance(one.shape, GridShape):
            sizes.append(float(np.abs(one.shape.distances).max()))
    if any(np.abs(one.pose[:3]).max() > 100 for one in case.placed):
        # The translation of such a large pose is not counted: it moves back a shape that is far from its own origin.
        sizes = [sizes[1], *(sizes[2:] if sizes[1] > 100 else [])]
    return max(sizes)


def upstream_of(case: MeshCase, stable: NDArray[np.bool_], names: tuple[str, ...]) -> dict[str, Doubles]:
    """Random gradients of outputs [B, H, S], 0 where a gradient depends on rounding."""
    random = random_of(f"upstream of {case.name}")
    return {name: np.where(stable, random.standard_normal(case.shape), 0.0) for name in names}


@functools.lru_cache(200)
def exact(name: str, make: Callable[[str], MeshCase]) -> ExactScene:
    """The reference of a case, evaluated once for all engines."""
    scene = ExactScene(make(name))
    assert scene.cost is not None and scene.nearest is not None
    return scene


@functools.lru_cache(200)
def curobo(name: str, make: Callable[[str], MeshCase]) -> CuroboScene:
    """The reference of a case in cuRobo's semantics, evaluated once for all engines."""
    return CuroboScene(make(name))
