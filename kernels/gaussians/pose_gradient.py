"""Gradients of cameras and transforms from the engine's sums per view and slice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lumigrad.kernels.gaussians.camera import Camera
from lumigrad.kernels.gaussians.camera_sources import InriaSource, OpenCVSource
from lumigrad.kernels.gaussians.rotation import cross_matrix, rotation_about
from lumigrad.kernels.gaussians.transforms import Slices

Array = np.ndarray
_CLIP_COLUMNS = (0, 1, 3)


@dataclass(frozen=True, eq=False)
class PoseSums:
    """The engine's sums: partial derivatives with the other two fixed; float64.

    Attributes:
        rotation: [V, G, 3, 3] dL/d rotation of a pose.
        translation: [V, G, 3] dL/d translation of a pose.
        eye: [V, G, 3] dL/d eye of a pose.
        motion: [V, G, 3, 3] for moving slices, see kPoseSums: turns carried to the end, translations, and translations
            weighted by their times.
    """

    rotation: Array
    translation: Array
    eye: Array
    motion: Array

    @staticmethod
    def of(sums: Array) -> PoseSums:
        """Splits an array [V, G, 24] in the layout of `Gradients::poses`."""
        matrix = (*sums.shape[:2], 3, 3)
        return PoseSums(
            sums[..., :9].reshape(matrix), sums[..., 9:12], sums[..., 12:15], sums[..., 15:].reshape(matrix)
        )


def of_cameras(
    cameras: Sequence[Camera], slices: Slices, sums: PoseSums, film: Array, turned: Array | None = None
) -> dict[str, Array]:
    """Gradients of the cameras, which must be all OpenCV's or all Inria's.

    Args:
        cameras: V views.
        slices: The slices of the scene.
        sums: The sums of the backward pass.
        film: [V, 4] dL/d fx, fy, cx, cy for OpenCV's cameras; [V, 12] dL/d View::projection for Inria's.
        turned: [V, 3, 3] gradients of the cameras' rotations that do not pass through the poses; None: 0.

    Returns:
        By name, float64. For OpenCV's cameras "camera_rotation" [V, 3, 3], "camera_translation" [V, 3] (12 independent
        entries of the view matrix, on which the eye depends), "camera_intrinsics" [V, 4] and "camera_pose" [V, 6]; for
        Inria's "camera_view" [V, 4, 4], "camera_projection" [V, 4, 4] and "camera_position" [V, 3], independently.
    """
    # pose rotation = R Rg, pose translation = R tg + t, pose eye = Rg^T (eye - tg).
    d_rotation = np.sum(sums.rotation @ slices.rotations.swapaxes(-1, -2), axis=1)
    if turned is not None:
        d_rotation += turned
    d_rotation += np.einsum("vgi,gj->vij", sums.translation, slices.translations)
    d_translation = sums.translation.sum(axis=1)
    d_eye = of_eyes(slices, sums)
    # Adding 0 turns -0 into 0: the sign of a zero depends on the order of the sum.
    d_rotation, d_translation, d_eye = d_rotation + 0.0, d_translation + 0.0, d_eye + 0.0
    if isinstance(cameras[0].source, InriaSource):
        return _inria(d_rotation, d_translation, d_eye, film)
    sources = [camera.source for camera in cameras if isinstance(camera.source, OpenCVSource)]
    rotation = np.stack([source.rotation for source in sources])
    translation = np.stack([source.translation for source in sources])
    # eye = -R^T t.
    d_rotation -= translation[:, :, None] * d_eye[:, None, :]
    d_translation = d_translation - _summed(rotation * d_eye[:, None, :])
    return {
        "camera_rotation": d_rotation,
        "camera_translation": d_translation,
        "camera_intrinsics": film,
        "camera_pose": _pose(rotation, translation, d_rotation, d_translation),
    }


def of_eyes(slices: Slices, sums: PoseSums) -> Array:
    """dL/d eye of the cameras, [V, 3], world frame."""
    # pose eye = Rg^T (eye - tg).
    result: Array = np.einsum("gij,vgj->vi", slices.middle()[0], sums.eye)
    return result


def _inria(d_rotation: Array, d_translation: Array, d_eye: Array, projection: Array) -> dict[str, Array]:
    views = len(d_eye)
    d_view, d_projection = np.zeros((views, 4, 4)), np.zeros((views, 4, 4))
    d_view[:, :3, :3] = d_rotation.swapaxes(-1, -2)
    d_view[:, 3, :3] = d_translation
    d_projection[:, :, _CLIP_COLUMNS] = projection.reshape(views, 3, 4).swapaxes(-1, -2)
    return {"camera_view": d_view, "camera_projection": d_projection, "camera_position": d_eye}


def _pose(rotation: Array, translation: Array, d_rotation: Array, d_translation: Array) -> Array:
    """The gradient [V, 6] with respect to xi at 0, for the pose exp(xi) V: rho x y z, then phi x y z."""
    # d rotation = [phi] R and d translation = [phi] t + rho.
    turn = _summed(d_rotation[:, :, None] * rotation[:, None]) + d_translation[:, :, None] * translation[:, None, :]
    phi = [turn[:, 2, 1] - turn[:, 1, 2], turn[:, 0, 2] - turn[:, 2, 0], turn[:, 1, 0] - turn[:, 0, 1]]
    return np.concatenate([d_translation, np.stack(phi, axis=-1)], axis=-1)


def _summed(products: Array) -> Array:
    """The sum along the last axis, of length 3, in a fixed order, so that native code gives the same bits."""
    result: Array = products[..., 0] + products[..., 1] + products[..., 2]
    return result


def of_transforms(
    cameras: Sequence[Camera], slices: Slices, sums: PoseSums, normals: Array | None = None
) -> dict[str, Array]:
    """Gradients of the transforms, float64, in the order given.

    Args:
        cameras: V views.
        slices: The slices of the scene.
        sums: The sums of the backward pass.
        normals: [V, G, 9] gradients of the slices' rotations that pass through normals.

    Returns:
        "transforms" [T, 4, 4]: 12 independent entries, the last row 0; for moving transforms the gradient at the start,
        with the rotation's gradient among the rotations. If some move, also "transforms_end", the gradients at the
        end, 0 for transforms that do not move.
    """
    # The sums of sensors refer to the slices' own poses in the world.
    rotation = np.stack([np.eye(3) if camera.is_sensor else camera.source.rotation for camera in cameras])
    eye = np.stack([camera.source.eye for camera in cameras])
    from_eye = eye[:, None] - slices.translations
    gradient = np.zeros((slices.count, 4, 4))
    gradient[:, :3, :3] = np.einsum("vki,vgkj->gij", rotation, sums.rotation)
    gradient[:, :3, :3] += np.einsum("vgi,vgj->gij", from_eye, sums.eye)
    if normals is not None:
        gradient[:, :3, :3] += normals.sum(axis=0).reshape(-1, 3, 3)
    gradient[:, :3, 3] = np.einsum("vki,vgk->gi", rotation, sums.translation)
    gradient[:, :3, 3] -= np.einsum("gij,vgj->gi", slices.rotations, sums.eye)
    ends = np.zeros_like(gradient)
    middle = slices.middle()
    for index in slices.ends:
        gradient[index], ends[index] = _of_moving(cameras, slices, sums, middle, index)
    order = list(slices.of_transform)
    return {"transforms": gradient[order], **({"transforms_end": ends[order]} if slices.ends else {})}


def _of_moving(
    cameras: Sequence[Camera], slices: Slices, sums: PoseSums, middles: tuple[Array, Array], index: int
) -> tuple[Array, Array]:
    """The gradients [4, 4] of a moving slice's poses at the start and at the end (sensors spec section 5)."""
    start, end = slices.rotations[index], slices.ends[index][:3, :3]
    axis, angle = slices.turn(index)
    # Gradients are turned from the frames of the cameras at the start to the world.
    to_world = np.stack([camera.source.rotation for camera in cameras]).swapaxes(-1, -2)
    carried, push, timed = np.einsum("vij,vkj->ki", to_world, sums.motion[:, index])
    spin = _turn_of(sums.rotation[:, index].sum(axis=0), start)
    # The eye in the slice's frame follows from the pose at the middle.
    middle, origin = (array[index] for array in middles)
    d_eye = sums.eye[:, index]
    from_eye = np.stack([camera.source.eye for camera in cameras]) - origin
    half = rotation_about(0.5 * angle * axis)
    at_middle = half.T @ _turn_of(np.einsum("vi,vj->ij", from_eye, d_eye), middle)
    spin, carried = spin + at_middle, carried + _carried_from_middle(axis, angle, at_middle)
    away = -middle @ d_eye.sum(axis=0)
    push, timed = push + away, timed + 0.5 * away
    turn_end = rotation_about(angle * axis) @ carried
    return _pose_matrix(spin - carried, start, push - timed), _pose_matrix(turn_end, end, timed)


def _carried_from_middle(axis: Array, angle: float, turn: Array) -> Array:
    """Carry the gradient of a turn at the middle, seen from the start, to a turn at the end, seen from the end."""
    parallel = axis * (axis @ turn)
    across = turn - parallel
    ratio = 0.5 / np.cos(0.25 * angle)
    rotated = np.cos(0.25 * angle) * across - np.sin(0.25 * angle) * np.cross(axis, across)
    result: Array = ratio * rotated + 0.5 * parallel
    return result


def _turn_of(d_rotation: Array, rotation: Array) -> Array:
    """The gradient [3] of a turn phi before a rotation, given the gradient of the rotation [3, 3]."""
    m = d_rotation @ rotation.T
    return np.array([m[2, 1] - m[1, 2], m[0, 2] - m[2, 0], m[1, 0] - m[0, 1]])


def _pose_matrix(turn: Array, rotation: Array, d_translation: Array) -> Array:
    """The gradient [4, 4] of a pose, among the rotations."""
    gradient = np.zeros((4, 4))
    gradient[:3, :3] = 0.5 * cross_matrix(turn) @ rotation
    gradient[:3, 3] = d_translation
    return gradient
