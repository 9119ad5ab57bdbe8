"""Stored scenes under the transforms of scene graphs, and the half turn between two systems of axes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from lumigrad.client.base.arrays import Float64
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.formats.scene import StoredScene, flipped
from lumigrad.client.values.affine import Affine


def placed(scene: StoredScene, matrix: Float64, fail: Callable[[str], InvalidArgument]) -> StoredScene:
    """Returns the scene under an affine transform, which must not mirror; see `Affine`.

    Args:
        scene: the scene.
        matrix: [4, 4] for column vectors.
        fail: makes the error of a matrix that mirrors, flattens or is not finite.
    """
    if np.array_equal(matrix, np.eye(4)):
        return scene
    affine = Affine.of(matrix, fail)
    quats, scales = affine.shapes(scene.quats, scene.scales)
    return replace(scene, means=affine.means(scene.means), quats=quats, scales=scales, sh=affine.harmonics(scene.sh))


def half_turned(scene: StoredScene, *, back: bool = False) -> StoredScene:
    """Returns the scene after half a turn about z, from right, down, forward to left, up, forward.

    Quaternions (w, x, y, z) become (-z, -y, x, w), so that turning back gives the same numbers.

    Args:
        scene: the scene.
        back: turn back.
    """
    w, x, y, z = scene.quats.T
    quats = (z, y, -x, -w) if back else (-z, -y, x, w)
    return replace(flipped(scene, (-1, -1, 1)), quats=np.stack(quats, axis=1))
