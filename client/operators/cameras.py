"""Cameras from the matrices that users differentiate, and gradients back to these matrices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lumigrad.client.base.arrays import Array, Float64, to_numpy
from lumigrad.client.base.timings import Gradients
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.values.camera import Camera, Projection

# The arrays that cameras are made of, named by what they are for.
CAMERA_INPUTS = ("view", "projection", "position")


@dataclass(frozen=True)
class ViewMatrices:
    """OpenCV's cameras: "view" [.., 4, 4] are view matrices, "projection" [.., 3, 3] the intrinsics K.

    Attributes:
        width: picture width, pixels.
        height: picture height, pixels.
        model: of all cameras.
        distortion: one row of coefficients for each camera; empty: none.
        is_checked: whether the matrices are checked here.
    """

    width: int
    height: int
    model: Projection = "pinhole"
    distortion: tuple[tuple[float, ...], ...] = ()
    is_checked: bool = False

    def cameras(self, inputs: Mapping[str, Array | None]) -> tuple[Camera, ...]:
        """One camera for each pair of matrices."""
        views, intrinsics = _present(inputs["view"]).reshape(-1, 4, 4), _present(inputs["projection"]).reshape(-1, 3, 3)
        cameras = []
        for view, k, row in zip(views, intrinsics, self.distortion or ((),) * len(views), strict=True):
            matrices = (view, k) if self.is_checked else (k[0, 0], k[1, 1], k[0, 2], k[1, 2], view[:3, :3], view[:3, 3])
            make: Any = Camera.from_view_matrix if self.is_checked else Camera.opencv
            cameras.append(make(*matrices, self.width, self.height, model=self.model, distortion=row))
        return tuple(cameras)

    def gradients(self, found: Gradients) -> dict[str, Array]:
        """The last row of a view matrix, and the fixed entries of K, have the gradient 0."""
        count = len(found.camera_intrinsics)
        view, intrinsics = np.zeros((count, 4, 4), np.float32), np.zeros((count, 3, 3), np.float32)
        view[:, :3, :3], view[:, :3, 3] = found.camera_rotation, found.camera_translation
        intrinsics[:, (0, 1, 0, 1), (0, 1, 2, 2)] = found.camera_intrinsics
        return {"view": view, "projection": intrinsics}


@dataclass(frozen=True)
class InriaMatrices:
    """Inria's camera: "view" and "projection" are its two matrices [4, 4], "position" [3] is its eye.

    Attributes:
        width: picture width, pixels.
        height: picture height, pixels.
        tan_fov_x: tangent of half the horizontal field of view.
        tan_fov_y: tangent of half the vertical one.
    """

    width: int
    height: int
    tan_fov_x: float
    tan_fov_y: float

    def cameras(self, inputs: Mapping[str, Array | None]) -> tuple[Camera, ...]:
        """One camera."""
        view, projection, position = (_present(inputs[name]) for name in CAMERA_INPUTS)
        size = self.width, self.height
        return (Camera.inria(view, projection, position, self.tan_fov_x, self.tan_fov_y, *size),)

    def gradients(self, found: Gradients) -> dict[str, Array]:
        """As the worker returns them."""
        arrays = (found.camera_view, found.camera_projection, found.camera_position)
        return dict(zip(CAMERA_INPUTS, arrays, strict=True))


def distortion_rows(distortion: Any, cameras: int) -> tuple[tuple[float, ...], ...]:
    """Rows of coefficients from [k], which all cameras share, or [.., C, k]; empty for None."""
    if distortion is None:
        return ()
    array: Float64 = np.asarray(to_numpy("distortion", distortion), np.float64)
    if array.ndim == 1:
        array = np.broadcast_to(array, (cameras, len(array)))
    rows = array.reshape(-1, array.shape[-1])
    if len(rows) != cameras:
        raise InvalidArgument.of(
            "distortion", f"expected [k] or one row for each of {cameras} cameras, got {list(array.shape)}"
        )
    return tuple(tuple(row) for row in rows.tolist())


def _present(array: Array | None) -> Array:
    assert array is not None
    return array
