"""Cameras from the tensors that users differentiate, and gradients back to these tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from lumigrad.client.base.arrays import Array, Float64
from lumigrad.client.base.timings import Gradients
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.values.camera import Camera, Projection

# The tensors that cameras are made of, named by what they are for.
CAMERA_INPUTS = ("view", "projection", "position")


class CameraSource(Protocol):
    """Makes the cameras of a rendering from float64 arrays."""

    def cameras(self, inputs: Mapping[str, Array | None]) -> tuple[Camera, ...]:
        """The cameras, in order; `inputs` has those of `CAMERA_INPUTS`."""

    def gradients(self, found: Gradients) -> dict[str, torch.Tensor]:
        """The gradient of each tensor, from those of the cameras."""


@dataclass(frozen=True)
class ViewMatrices:
    """OpenCV's cameras: "view" [.., 4, 4] are view matrices, "projection" [.., 3, 3] the intrinsics K.

    Attributes:
        width: picture width, pixels.
        height: picture height, pixels.
        model: of all cameras.
        distortion: one row of coefficients for each camera; empty: none.
    """

    width: int
    height: int
    model: Projection = "pinhole"
    distortion: tuple[tuple[float, ...], ...] = ()

    def cameras(self, inputs: Mapping[str, Array | None]) -> tuple[Camera, ...]:
        """One camera for each pair of matrices."""
        views, intrinsics = _present(inputs["view"]).reshape(-1, 4, 4), _present(inputs["projection"]).reshape(-1, 3, 3)
        distortion = self.distortion or ((),) * len(views)
        return tuple(
            Camera.opencv(
                k[0, 0], k[1, 1], k[0, 2], k[1, 2], view[:3, :3], view[:3, 3], self.width, self.height,
                model=self.model, distortion=row,
            )
            for view, k, row in zip(views, intrinsics, distortion, strict=True)
        )  # fmt: skip

    def gradients(self, found: Gradients) -> dict[str, torch.Tensor]:
        """The last row of a view matrix, and the fixed entries of K, have the gradient 0."""
        count = len(found.camera_intrinsics)
        view, intrinsics = torch.zeros(count, 4, 4), torch.zeros(count, 3, 3)
        view[:, :3, :3] = torch.from_numpy(found.camera_rotation)
        view[:, :3, 3] = torch.from_numpy(found.camera_translation)
        values = torch.from_numpy(found.camera_intrinsics)
        for column, (row, entry) in enumerate(((0, 0), (1, 1), (0, 2), (1, 2))):
            intrinsics[:, row, entry] = values[:, column]
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

    def gradients(self, found: Gradients) -> dict[str, torch.Tensor]:
        """As the worker returns them."""
        arrays = (found.camera_view, found.camera_projection, found.camera_position)
        return {name: torch.from_numpy(array) for name, array in zip(CAMERA_INPUTS, arrays, strict=True)}


def check_matrices(viewmats: torch.Tensor, intrinsics: torch.Tensor) -> None:
    """Raises InvalidArgument for view matrices [.., 4, 4] and Ks [.., 3, 3] that mean something else than is done."""
    if not viewmats.isfinite().all():
        raise InvalidArgument.of("viewmats", "expected finite values, got some that are nan or infinite")
    rows = viewmats.detach()[..., 3, :]
    if not torch.allclose(rows, rows.new_tensor([0.0, 0.0, 0.0, 1.0]), atol=1e-6):
        raise InvalidArgument.of(
            "viewmats", "expected 0 0 0 1 as the last row of each; transpose matrices that are for row vectors"
        )
    skew = intrinsics.detach()[..., (0, 1, 2, 2), (1, 0, 0, 1)]
    if skew.any():
        raise InvalidArgument.of("Ks", "expected fx 0 cx, 0 fy cy, 0 0 1 in each, got skew; leave it out")


def distortion_rows(distortion: Any, cameras: int) -> tuple[tuple[float, ...], ...]:
    """Rows of coefficients from [k], which all cameras share, or [.., C, k]; empty for None."""
    if distortion is None:
        return ()
    array: Float64 = torch.as_tensor(distortion).detach().to("cpu", torch.float64).numpy()
    if array.ndim == 1:
        array = np.broadcast_to(array, (cameras, len(array)))
    rows = array.reshape(-1, array.shape[-1])
    if len(rows) != cameras:
        raise InvalidArgument.of("distortion", f"expected one row for each of {cameras} cameras, got {len(rows)}")
    return tuple(tuple(row) for row in rows.tolist())


def _present(array: Array | None) -> Array:
    assert array is not None
    return array
