"""Rigid transforms of slices of a scene, and the poses of slices relative to cameras."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lumigrad.kernels.checks import is_whole
from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.gaussians.camera import Camera

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Transform:
    """Transforms Gaussians [begin, end) of each scene from an object frame to the world.

    It applies to means, orientations and spherical harmonics.

    Attributes:
        begin, end: The slice.
        matrix: [4, 4], object to world, rigid, for column vectors; stored as float64.

    Raises:
        ArgumentError: The slice is empty or the matrix is not rigid.
    """

    begin: int
    end: int
    matrix: Array

    def __post_init__(self) -> None:
        if not (is_whole(self.begin) and is_whole(self.end) and 0 <= self.begin < self.end):
            raise ArgumentError("transforms", "a slice with 0 <= begin < end", f"[{self.begin}, {self.end})")
        try:
            matrix = np.array(self.matrix, np.float64)
        except (TypeError, ValueError):
            matrix = np.zeros(0)
        if matrix.size != 16 or not _is_rigid(matrix.reshape(4, 4)):
            expected = "a rigid 4x4 matrix: an orthonormal rotation of determinant 1 and the last row 0 0 0 1"
            raise ArgumentError("transforms", expected, f"{self.matrix}")
        object.__setattr__(self, "matrix", matrix.reshape(4, 4))


@dataclass(frozen=True, eq=False)
class Slices:
    """The partition of a scene's Gaussians at the ends of all transforms.

    Attributes:
        begins: [G + 1]; slice g is [begins[g], begins[g + 1]).
        rotations: [G, 3, 3] object to world, float64.
        translations: [G, 3] float64.
        of_transform: For each transform, in the order given, the index of its slice.
    """

    begins: tuple[int, ...]
    rotations: Array
    translations: Array
    of_transform: tuple[int, ...]

    @property
    def count(self) -> int:
        """G."""
        return len(self.begins) - 1

    def flat(self) -> Array:
        """[G, 12] rotation, row-major, and translation; float64."""
        rows = np.concatenate([self.rotations.reshape(-1, 9), self.translations], axis=-1)
        return np.ascontiguousarray(rows, np.float64)


def cut(transforms: Sequence[Transform], count: int) -> Slices:
    """Partitions `count` Gaussians; slices between those of the transforms get the identity.

    Raises:
        ArgumentError: The transforms' slices overlap or end after `count`.
    """
    begins, matrices, at = [0], [], 0
    order = sorted(range(len(transforms)), key=lambda i: transforms[i].begin)
    of_transform = [0] * len(transforms)
    for i in order:
        transform = transforms[i]
        if transform.end > count:
            raise ArgumentError("transforms", f"slices of {count} Gaussians", f"[{transform.begin}, {transform.end})")
        if transform.begin < at:
            raise ArgumentError("transforms", "slices that do not overlap", f"one begins at {transform.begin} < {at}")
        if transform.begin > at:
            begins.append(transform.begin)
            matrices.append(np.eye(4))
        of_transform[i] = len(matrices)
        begins.append(transform.end)
        matrices.append(transform.matrix)
        at = transform.end
    if at < count or not matrices:
        begins.append(count)
        matrices.append(np.eye(4))
    stacked = np.stack(matrices)
    return Slices(tuple(begins), stacked[:, :3, :3], stacked[:, :3, 3], tuple(of_transform))


def poses(cameras: Sequence[Camera], slices: Slices) -> Array:
    """For each view and slice, [V, G, 15] float64: rotation and translation to the camera frame, and the eye.

    p = rotation @ m + translation. The eye is the viewpoint for spherical harmonics in the slice's frame. Computed in
    float64, since a scene may be far from its origin.
    """
    rotation = np.stack([camera.source.rotation for camera in cameras])[:, None]
    translation = np.stack([camera.source.translation for camera in cameras])[:, None]
    eye = np.stack([camera.source.eye for camera in cameras])[:, None]
    shape = (len(cameras), slices.count)
    parts = (
        (rotation @ slices.rotations).reshape(*shape, 9),
        (rotation @ slices.translations[..., None])[..., 0] + translation,
        ((eye - slices.translations)[..., None, :] @ slices.rotations)[..., 0, :],
    )
    return np.concatenate(parts, axis=-1)


def _is_rigid(matrix: Array) -> bool:
    rotation = matrix[:3, :3]
    return bool(
        np.isfinite(matrix).all()
        and np.allclose(rotation @ rotation.T, np.eye(3), atol=1e-3)
        and np.linalg.det(rotation) > 0
        and np.allclose(matrix[3], (0.0, 0.0, 0.0, 1.0), atol=1e-6)
    )
