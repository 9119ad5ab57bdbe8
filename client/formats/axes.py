"""The same scene in other axes: mirrored and turned where letters such as RUB and RDF differ."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from lumigrad.client.arrays import Float32
from lumigrad.client.formats.scene import StoredScene

# For each harmonic up to degree 4 the axes in which it is odd: it changes its sign where an odd number of them does.
_ODD_AXES = (
    *("", "y", "z", "x"),
    *("xy", "yz", "", "xz", ""),
    *("y", "xyz", "y", "z", "x", "z", "x"),
    *("xy", "yz", "xy", "yz", "", "xz", "", "xz", ""),
)


def flipped(scene: StoredScene, signs: tuple[int, int, int]) -> StoredScene:
    """The scene with x, y and z times `signs`, each 1 or -1.

    A rotation R becomes F R F, so that the vector part of its quaternion, an axis, gets the product of the two other
    signs; the covariance of each Gaussian is then F Σ F exactly.
    """
    x, y, z = signs
    sign = dict(zip("xyz", signs, strict=True))
    parity = [int(np.prod([sign[axis] for axis in axes])) for axes in _ODD_AXES[: scene.sh.shape[1]]]
    return replace(
        scene,
        means=_signed(scene.means, signs),
        quats=_signed(scene.quats, (1, y * z, x * z, x * y)),
        sh=_signed(scene.sh, [[sign] for sign in parity]),
    )


def _signed(values: Float32, signs: Any) -> Float32:
    # Plus 0 leaves no zeros with a sign.
    return np.asarray(values * np.array(signs, np.float32) + np.float32(0))
