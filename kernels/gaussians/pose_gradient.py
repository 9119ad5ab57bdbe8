"""From the engine's sums per view and slice to gradients of cameras and transforms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lumigrad.kernels.gaussians.camera import Camera
from lumigrad.kernels.gaussians.camera_sources import InriaSource, OpenCVSource
from lumigrad.kernels.gaussians.transforms import Slices

Array = np.ndarray
_CLIP_COLUMNS = (0, 1, 3)


@dataclass(frozen=True, eq=False)
class PoseSums:
    """What the engine summed, each as if the others were fixed; float64.

    Attributes:
        rotation: [V, G, 3, 3] dL/d rotation of a pose.
        translation: [V, G, 3] dL/d its translation.
        eye: [V, G, 3] dL/d its eye.
    """

    rotation: Array
    translation: Array
    eye: Array

    @staticmethod
    def of(sums: Array) -> PoseSums:
        """From [V, G, 15], as `Gradients::poses` lays it out."""
        shape = sums.shape[:2]
        return PoseSums(sums[..., :9].reshape(*shape, 3, 3), sums[..., 9:12], sums[..., 12:15])


def of_cameras(cameras: Sequence[Camera], slices: Slices, sums: PoseSums, film: Array) -> dict[str, Array]:
    """Gradients of the cameras, which are of one kind.

    Args:
        cameras: V views.
        slices: Of the scene.
        sums: Of the backward pass.
        film: [V, 4] dL/d fx, fy, cx, cy for OpenCV's cameras; [V, 12] dL/d View::projection for Inria's.

    Returns:
        By name, float64. For OpenCV's cameras "camera_rotation" [V, 3, 3], "camera_translation" [V, 3] (16 free entries
        of the view matrix, the eye moving with them), "camera_intrinsics" [V, 4] and "camera_pose" [V, 6]; for Inria's
        "camera_view" [V, 4, 4], "camera_projection" [V, 4, 4] and "camera_position" [V, 3], each on its own.
    """
    # pose rotation = R Rg, pose translation = R tg + t, pose eye = Rg^T (eye - tg).
    d_rotation = np.sum(sums.rotation @ slices.rotations.swapaxes(-1, -2), axis=1)
    d_rotation += np.einsum("vgi,gj->vij", sums.translation, slices.translations)
    d_translation = sums.translation.sum(axis=1)
    d_eye = np.einsum("gij,vgj->vi", slices.rotations, sums.eye)
    if isinstance(cameras[0].source, InriaSource):
        return _inria(d_rotation, d_translation, d_eye, film)
    sources = [camera.source for camera in cameras if isinstance(camera.source, OpenCVSource)]
    rotation = np.stack([source.rotation for source in sources])
    translation = np.stack([source.translation for source in sources])
    # eye = -R^T t.
    d_rotation -= translation[:, :, None] * d_eye[:, None, :]
    d_translation = d_translation - np.einsum("vij,vj->vi", rotation, d_eye)
    return {
        "camera_rotation": d_rotation,
        "camera_translation": d_translation,
        "camera_intrinsics": film,
        "camera_pose": _pose(rotation, translation, d_rotation, d_translation),
    }


def _inria(d_rotation: Array, d_translation: Array, d_eye: Array, projection: Array) -> dict[str, Array]:
    views = len(d_eye)
    d_view, d_projection = np.zeros((views, 4, 4)), np.zeros((views, 4, 4))
    d_view[:, :3, :3] = d_rotation.swapaxes(-1, -2)
    d_view[:, 3, :3] = d_translation
    d_projection[:, :, _CLIP_COLUMNS] = projection.reshape(views, 3, 4).swapaxes(-1, -2)
    return {"camera_view": d_view, "camera_projection": d_projection, "camera_position": d_eye}


def _pose(rotation: Array, translation: Array, d_rotation: Array, d_translation: Array) -> Array:
    """[V, 6] for V <- exp(xi) V at xi = 0: rho x y z, then phi x y z."""
    # d rotation = [phi] R and d translation = [phi] t + rho.
    turn = d_rotation @ rotation.swapaxes(-1, -2) + d_translation[:, :, None] * translation[:, None, :]
    phi = [turn[:, 2, 1] - turn[:, 1, 2], turn[:, 0, 2] - turn[:, 2, 0], turn[:, 1, 0] - turn[:, 0, 1]]
    return np.concatenate([d_translation, np.stack(phi, axis=-1)], axis=-1)


def of_transforms(cameras: Sequence[Camera], slices: Slices, sums: PoseSums) -> Array:
    """[T, 4, 4] float64 in the order in which the transforms were given: 12 free entries, the last row 0."""
    rotation = np.stack([camera.source.rotation for camera in cameras])
    eye = np.stack([camera.source.eye for camera in cameras])
    from_eye = eye[:, None] - slices.translations
    gradient = np.zeros((slices.count, 4, 4))
    gradient[:, :3, :3] = np.einsum("vki,vgkj->gij", rotation, sums.rotation)
    gradient[:, :3, :3] += np.einsum("vgi,vgj->gij", from_eye, sums.eye)
    gradient[:, :3, 3] = np.einsum("vki,vgk->gi", rotation, sums.translation)
    gradient[:, :3, 3] -= np.einsum("gij,vgj->gi", slices.rotations, sums.eye)
    return gradient[list(slices.of_transform)]
