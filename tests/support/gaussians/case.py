"""Gaussians, cameras and settings: the inputs of the reference and of every engine in the tests."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

# The tensors of a scene, in the order of the protocol.
SCENE = ("means", "quats", "scales", "covariances", "opacities", "sh", "colors")


@dataclass(frozen=True)
class OpenCVView:
    """p = rotation @ m + translation; intrinsics are fx, fy, cx, cy in pixels; distortion as OpenCV orders it."""

    intrinsics: Doubles
    rotation: Doubles
    translation: Doubles
    model: str = "pinhole"
    distortion: tuple[float, ...] = ()


@dataclass(frozen=True)
class InriaView:
    """Two independent row-vector matrices [4, 4], and the position of the camera, for view-dependent colours."""

    view: Doubles
    projection: Doubles
    position: Doubles
    tan_fov_x: float
    tan_fov_y: float


@dataclass(frozen=True)
class Slice:
    """Gaussians [begin, end) in their own frame; `matrix` [4, 4], rigid, maps it to the world."""

    begin: int
    end: int
    matrix: Doubles


@dataclass(frozen=True)
class Options:
    """Settings with the defaults of the protocol; repeated here so that tests fail if a default changes."""

    semantics: str = "exact"
    sh_degree: int | None = None
    antialiased: bool = False
    eps2d: float = 0.3
    near: float = 0.01
    far: float = 1e10
    radius_clip: float = 0.0
    alpha_min: float = 1 / 255
    alpha_max: float = 0.99
    transmittance_min: float = 1e-4
    pixel_center: float = 0.5
    scale_modifier: float = 1.0
    deterministic: bool = False

    @property
    def inria(self) -> bool:
        """Whether the image formation is that of Inria's rasterizer."""
        return self.semantics.startswith("inria")


@dataclass(frozen=True)
class GaussianCase:
    """Arrays are float32: means [N, 3] or [S, N, 3] and so on; C cameras, those of one scene after another."""

    name: str
    means: Floats
    opacities: Floats
    cameras: tuple[OpenCVView | InriaView, ...]
    width: int
    height: int
    quats: Floats | None = None
    scales: Floats | None = None
    covariances: Floats | None = None
    sh: Floats | None = None
    # [.., N, D], or per view [C, N, D] ([S, C / S, N, D] of a batch).
    colors: Floats | None = None
    background: Floats | None = None
    slices: tuple[Slice, ...] = ()
    options: Options = field(default_factory=Options)

    @property
    def channels(self) -> int:
        """Number of colour channels."""
        features = self.sh if self.sh is not None else self.colors
        return int(features.shape[-1])

    @property
    def scenes(self) -> int | None:
        """The number of scenes of a batch; None: a single scene without that axis."""
        return len(self.means) if self.means.ndim == 3 else None

    @property
    def count(self) -> int:
        """Gaussians per scene."""
        return int(self.means.shape[-2])

    @property
    def tensors(self) -> dict[str, Floats]:
        """The tensors that the scene has."""
        return {name: value for name in SCENE if (value := getattr(self, name)) is not None}
