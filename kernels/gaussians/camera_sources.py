"""Parameters from which cameras of Gaussians are created."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class OpenCVSource:
    """K, R and t: p = rotation @ m + translation. Float64; intrinsics in pixels.

    Attributes:
        intrinsics: [4] fx, fy, cx, cy.
        rotation: [3, 3], world to camera; need not be orthonormal.
        translation: [3], scene units.
        distortion: [8] k1 k2 p1 p2 k3 k4 k5 k6.
    """

    intrinsics: tuple[float, float, float, float]
    rotation: Array
    translation: Array
    distortion: tuple[float, ...]

    @property
    def eye(self) -> Array:
        """The viewpoint for spherical harmonics, [3]: -R^T t."""
        # A fixed order of the sum, not that of a BLAS, so that native code gives the same bits.
        first, second, third = self.rotation * self.translation[:, None]
        result: Array = 0.0 - (first + second + third)
        return result


@dataclass(frozen=True, eq=False)
class InriaSource:
    """The matrices of diff-gaussian-rasterization, for row vectors ([m, 1] @ matrix); independent inputs. Float64.

    Attributes:
        view: [4, 4] world to camera.
        projection: [4, 4] world to clip space.
        position: [3], the viewpoint for spherical harmonics.
        tan_fov: Tangents of half the field of view, (x, y).
    """

    view: Array
    projection: Array
    position: Array
    tan_fov: tuple[float, float]

    @property
    def rotation(self) -> Array:
        """[3, 3], world to camera."""
        return np.ascontiguousarray(self.view[:3, :3].T)

    @property
    def translation(self) -> Array:
        """[3]."""
        row: Array = self.view[3, :3]
        return row

    @property
    def eye(self) -> Array:
        """The viewpoint for spherical harmonics, [3]."""
        return self.position
