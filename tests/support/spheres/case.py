"""A sphere scene, a camera and settings: the inputs of every reference and every engine in the tests."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class SphereCase:
    """Inputs of one render in Pulsar's terms. Arrays are float32; `max_hits` 0 means no limit."""

    name: str
    positions: Floats
    colors: Floats
    radii: Floats
    camera: Floats
    width: int
    height: int
    gamma: float
    max_depth: float
    background: Floats
    output_gradient: Floats
    opacities: Floats | None = None
    min_depth: float = 0.0
    orthogonal: bool = False
    right_handed: bool = False
    first_r_then_t: bool = False
    n_track: int = 5
    background_depth: float = 1e-6
    allowed_difference: float = 0.01
    max_hits: int = 0
    # Compute only the number of hits, Pulsar's mode 1.
    hits_only: bool = False

    @property
    def channels(self) -> int:
        """Number of colour channels."""
        return int(self.colors.shape[1])


@dataclass(frozen=True)
class Expected:
    """The expected results of a case. Gradients have the names of the protocol."""

    image: Floats | None = None
    info: Floats | None = None
    hits: NDArray[np.int32] | None = None
    gradients: dict[str, Floats] = field(default_factory=dict)


def sphere_ids(info: Floats) -> NDArray[np.int32]:
    """The integer ids that a forward info [..., 3 + 2 T] holds as bit patterns: [..., T]."""
    return np.ascontiguousarray(info[..., 3::2]).view(np.int32)
