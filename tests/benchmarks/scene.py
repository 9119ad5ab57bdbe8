"""The standard scene of sphere benchmarks, with the same numbers wherever it is generated."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

# Eye at the origin, looking along +z: focal length 5, sensor width 2.
CAMERA = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 5.0, 2.0)
GAMMA = 1e-2
MAX_DEPTH = 45.0
N_TRACK = 5


@dataclass(frozen=True)
class Scene:
    """Spheres in the box [-5, 5] x [-5, 5] x [25, 35]; a pixel has about as many layers whatever their number."""

    positions: Floats
    colors: Floats
    radii: Floats


def scene(count: int) -> Scene:
    """`count` spheres, drawn in this order: positions, colours, radii."""
    random = np.random.Generator(np.random.PCG64(0))
    unit = random.random((count, 3))
    positions = unit * 10.0 + np.array([-5.0, -5.0, 25.0])
    colors = random.random((count, 3))
    radii = 0.35 * (1000.0 / count) ** (1.0 / 3.0) * (0.5 + random.random(count))
    return Scene(positions.astype(np.float32), colors.astype(np.float32), radii.astype(np.float32))


def output_gradient(width: int, height: int) -> Floats:
    """The gradient of the loss with respect to the picture, [height, width, 3]."""
    random = np.random.Generator(np.random.PCG64(1))
    return random.standard_normal((height, width, 3)).astype(np.float32)
