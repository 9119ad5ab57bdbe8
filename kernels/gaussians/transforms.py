"""Rigid transforms of slices of a scene, and the poses of slices relative to cameras."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from lumigrad.kernels.checks import is_whole
from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.gaussians.camera import Camera
from lumigrad.kernels.gaussians.rotation import LEAST_ANGLE, rotation_about, rotation_matrix, turn_between

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Transform:
    """Transforms Gaussians [begin, end) of each scene from an object frame to the world.

    It applies to means, orientations and spherical harmonics.

    Attributes:
        begin, end: The slice.
        matrix: [4, 4], object to world, rigid, for column vectors; stored as float64. With `matrix_end`: at the start
            of the exposure.
        matrix_end: The pose at the end of the exposure, for sensors with a rolling shutter; None: the slice does not
            move. In between, translations are interpolated along a straight line, and rotations along the shorter arc
            (sensors spec section 5).

    Raises:
        ArgumentError: The slice is empty or a matrix is not rigid.
    """

    begin: int
    end: int
    matrix: Array
    matrix_end: Array | None = None

    def __post_init__(self) -> None:
        if not (is_whole(self.begin) and is_whole(self.end) and 0 <= self.begin < self.end):
            raise ArgumentError("transforms", "a slice with 0 <= begin < end", f"[{self.begin}, {self.end})")
        object.__setattr__(self, "matrix", _rigid("transforms", self.matrix))
        if self.matrix_end is not None:
            # Interpolation between the ends of moving slices needs exact rotations.
            start, end = self.matrix, _rigid("transforms", self.matrix_end)
            for name, matrix in (("matrix", start), ("matrix_end", end)):
                turned = matrix.copy()
                turned[:3, :3] = rotation_matrix("transforms", matrix[:3, :3])
                object.__setattr__(self, name, turned)


@dataclass(frozen=True, eq=False)
class Slices:
    """The partition of a scene's Gaussians at the ends of all transforms.

    Attributes:
        begins: [G + 1]; slice g is [begins[g], begins[g + 1]).
        rotations: [G, 3, 3] object to world, float64.
        translations: [G, 3] float64.
        of_transform: For each transform, in the order given, the index of its slice.
        ends: Poses [4, 4] of moving slices at the end of the exposure, by index.
    """

    begins: tuple[int, ...]
    rotations: Array
    translations: Array
    of_transform: tuple[int, ...]
    ends: Mapping[int, Array]

    @property
    def count(self) -> int:
        """G."""
        return len(self.begins) - 1

    def turn(self, index: int) -> tuple[Array, float]:
        """The axis [3] and the angle of a moving slice's rotation from start to end, world frame."""
        return turn_between(self.rotations[index], self.ends[index][:3, :3])

    def middle(self) -> tuple[Array, Array]:
        """Rotations [G, 3, 3] and translations [G, 3] at the middle of the exposure."""
        rotations, translations = self.rotations.copy(), self.translations.copy()
        for index, end in self.ends.items():
            axis, angle = self.turn(index)
            rotations[index] = rotation_about(0.5 * angle * axis) @ rotations[index]
            translations[index] = 0.5 * (translations[index] + end[:3, 3])
        return rotations, translations

    def flat(self) -> Array:
        """[G, 19] rotation (row-major), translation, and axis, angle and motion (0 of slices that rest); float64."""
        rows = np.zeros((self.count, 19))
        rows[:, :9], rows[:, 9:12] = self.rotations.reshape(-1, 9), self.translations
        for index, end in self.ends.items():
            axis, angle = self.turn(index)
            rows[index, 12:15], rows[index, 15] = axis, max(angle, LEAST_ANGLE)
            rows[index, 16:] = end[:3, 3] - self.translations[index]
        return rows


def cut(transforms: Sequence[Transform], count: int) -> Slices:
    """Partitions `count` Gaussians; slices between those of the transforms get the identity.

    Raises:
        ArgumentError: The transforms' slices overlap or end after `count`.
    """
    if not transforms:
        return _whole(count)
    begins, matrices, ends, at = [0], [], {}, 0
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
        if transform.matrix_end is not None:
            ends[len(matrices)] = transform.matrix_end
        begins.append(transform.end)
        matrices.append(transform.matrix)
        at = transform.end
    if at < count:
        begins.append(count)
        matrices.append(np.eye(4))
    stacked = np.stack(matrices)
    return Slices(tuple(begins), stacked[:, :3, :3], stacked[:, :3, 3], tuple(of_transform), ends)


@lru_cache(maxsize=64)
def _whole(count: int) -> Slices:
    """One slice, with the identity."""
    return Slices((0, count), np.eye(3)[None], np.zeros((1, 3)), (), {})


def poses(cameras: Sequence[Camera], slices: Slices) -> Array:
    """Return rotation and translation to the camera frame, and the eye, for each view and slice, [V, G, 15] float64.

    p = rotation @ m + translation. The eye is the viewpoint for spherical harmonics in the slice's frame. Slices
    that move are taken at the middle of the exposure. Computed in float64, since a scene may be far from its origin.
    """
    if slices is _whole(slices.begins[-1]):
        sources = [camera.source for camera in cameras]
        # The same bits as the sums below with the identity; adding 0 turns -0 into 0, as the sums do.
        rows = [[*source.rotation.flat, *source.translation, *source.eye] for source in sources]
        whole: Array = np.array(rows, np.float64)[:, None] + 0.0
        return whole
    rotations, translations = slices.middle()
    rotation = np.stack([camera.source.rotation for camera in cameras])[:, None]
    translation = np.stack([camera.source.translation for camera in cameras])[:, None]
    eye = np.stack([camera.source.eye for camera in cameras])[:, None]
    shape = (len(cameras), slices.count)
    parts = (
        (rotation @ rotations).reshape(*shape, 9),
        (rotation @ translations[..., None])[..., 0] + translation,
        ((eye - translations)[..., None, :] @ rotations)[..., 0, :],
    )
    return np.concatenate(parts, axis=-1)


def _rigid(name: str, given: Array) -> Array:
    try:
        matrix = np.array(given, np.float64)
    except (TypeError, ValueError):
        matrix = np.zeros(0)
    if matrix.size != 16 or not _is_rigid(matrix.reshape(4, 4)):
        expected = "a rigid 4x4 matrix: an orthonormal rotation of determinant 1 and the last row 0 0 0 1"
        raise ArgumentError(name, expected, f"{given}")
    result: Array = matrix.reshape(4, 4)
    return result


def _is_rigid(matrix: Array) -> bool:
    rotation = matrix[:3, :3]
    return bool(
        np.isfinite(matrix).all()
        and np.allclose(rotation @ rotation.T, np.eye(3), atol=1e-3)
        and np.linalg.det(rotation) > 0
        and np.allclose(matrix[3], (0.0, 0.0, 0.0, 1.0), atol=1e-6)
    )
