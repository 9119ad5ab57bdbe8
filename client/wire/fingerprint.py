"""Whether the arrays of a scene are still what they were: values share memory with what they were made of."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping

import numpy as np

from lumigrad.client.base.arrays import Array
from lumigrad.client.values.handle import Scene
from lumigrad.client.values.mesh import Mesh
from lumigrad.client.values.world import World
from lumigrad.client.wire.worlds import world_arrays

# A prime, so that rows of any usual width take turns over the columns when they change their places.
_COLUMNS = 1021


def fingerprint(array: Array) -> int:
    """A number that changes with the content of an array, in a fiftieth of the time of the content hash.

    It is no proof against those who want to deceive.
    """
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    rows = flat.nbytes // (8 * _COLUMNS)
    whole = flat[: rows * 8 * _COLUMNS].view(np.uint64).reshape(rows, _COLUMNS)
    # Sums wrap around.
    sums = zlib.crc32(np.add.reduce(whole, axis=0))
    return zlib.crc32(flat[whole.nbytes :].data, sums)


def scene_fingerprints(scene: Scene) -> dict[str, int]:
    """The fingerprints of all arrays of a scene by their names; of a world with those of its meshes."""
    if not isinstance(scene, World):
        return {name: fingerprint(array) for name, array in scene.tensors.items()}
    found = {path: fingerprint(array) for path, array in world_arrays(scene).items()}
    meshes = {id(each.shape): (index, each.shape) for index, each in enumerate(scene.obstacles)}
    for index, mesh in meshes.values():
        if isinstance(mesh, Mesh):
            found |= {f"obstacles[{index}].mesh.{name}": fingerprint(array) for name, array in mesh.tensors.items()}
    return found


def updated_fingerprints(before: Mapping[str, int], scene: Scene, changed: Iterable[str]) -> dict[str, int]:
    """Those of a scene of which an update sent the `changed` tensors: the worker's others are still those of before."""
    if isinstance(scene, World):
        return dict(before)
    return {**before, **{name: fingerprint(scene.tensors[name]) for name in changed}}
