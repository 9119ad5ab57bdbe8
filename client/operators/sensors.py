"""Sensors of the operators: cameras from differentiable matrices and coefficients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lumigrad.client.base.arrays import Array
from lumigrad.client.base.timings import Gradients
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.camera_models import RowTime, Shutter
from lumigrad.client.values.lenses import (
    FisheyeLens,
    FThetaLens,
    Lens,
    LensDomain,
    OrthographicLens,
    PinholeLens,
    Reference,
    SpinDirection,
    SpinningLidar,
    Windshield,
)

# Names of coefficients; the protocol prefixes them with "lens_" or "windshield_".
OF_LENS = (
    "radial",
    "tangential",
    "thin_prism",
    "angle_to_pixel_distance",
    "pixel_distance_to_angle",
    "linear",
)
OF_WINDSHIELD = ("horizontal", "vertical", "horizontal_inverse", "vertical_inverse")
# Names of a lidar's tables; the protocol prefixes them with "lidar_".
OF_LIDAR = ("elevations", "azimuths", "offsets")
LENS_INPUTS = (*OF_LENS, *OF_WINDSHIELD, *OF_LIDAR)
RAYS = "rays"
# In K of an f-theta lens, the centre of the first pixel is at 0; elsewhere it is at this coordinate.
F_THETA_CENTER = 0.5


@dataclass(frozen=True)
class SensorMatrices:
    """V sensors that differ only in their arrays.

    The inputs are "view" and, with a rolling shutter, "view_end" [.., 4, 4], the intrinsics K as "projection"
    [.., 3, 3], the coefficients [V, k] of `LENS_INPUTS` that the lens has, and "rays" [.., H, W, 6], which replace the
    lens's own rays.

    Attributes:
        width: picture width, pixels.
        height: picture height, pixels.
        model: "pinhole", "orthographic", "fisheye", "ftheta" or "lidar".
        shutter: the order in which rows or columns are exposed.
        row_time: when a point is exposed, see `SensorModel`.
        domain: how far from the axis the lens is valid.
        reference: the polynomial that defines an f-theta lens.
        max_angle: the largest visible angle of an f-theta or fisheye lens, radians; None: as far as the polynomial of a
            fisheye rises.
        counts: the number of coefficients of each input.
        direction: the direction in which a lidar spins.
        behind: whether a fisheye shows points behind it.
    """

    width: int
    height: int
    model: str
    shutter: Shutter
    row_time: RowTime
    domain: LensDomain
    reference: Reference
    max_angle: float | None
    counts: tuple[tuple[str, int], ...]
    direction: SpinDirection
    behind: bool = False

    def cameras(self, inputs: Mapping[str, Array | None]) -> tuple[Camera, ...]:
        """Returns one camera for each pair of matrices."""
        views, ends = (_stack(inputs[name], (4, 4)) for name in ("view", "view_end"))
        intrinsics = _stack(inputs["projection"], (3, 3))
        assert views is not None and intrinsics is not None
        rows = {name: _stack(inputs[name], (count,)) for name, count in self.counts}
        rays = _stack(inputs[RAYS], (self.height, self.width, 6))
        cameras = []
        for index, (view, k) in enumerate(zip(views, intrinsics, strict=True)):
            own = {name: tuple(array[index].tolist()) for name, array in rows.items() if array is not None}
            end = {} if ends is None else {"end_rotation": ends[index, :3, :3], "end_translation": ends[index, :3, 3]}
            glass = {name: own.pop(name) for name in OF_WINDSHIELD if name in own}
            camera = Camera.sensor(
                self._lens(k, own),
                view[:3, :3],
                view[:3, 3],
                self.width,
                self.height,
                shutter=self.shutter,
                row_time=self.row_time,
                windshield=Windshield(**glass) if glass else None,
                rays=None if rays is None else rays[index],
                **end,
            )
            cameras.append(camera)
        return tuple(cameras)

    def _lens(self, k: Array, coefficients: Mapping[str, Any]) -> Lens:
        if self.model == "lidar":
            elevations, azimuths, offsets = (np.asarray(coefficients[name]) for name in OF_LIDAR)
            return SpinningLidar(
                row_elevations=elevations,
                column_azimuths=azimuths,
                row_azimuth_offsets=offsets,
                direction=self.direction,
            )
        fx, fy, cx, cy = (float(k[place]) for place in ((0, 0), (1, 1), (0, 2), (1, 2)))
        if self.model == "ftheta":
            return FThetaLens(
                cx=cx + F_THETA_CENTER,
                cy=cy + F_THETA_CENTER,
                max_angle=self.max_angle or 0.0,
                reference=self.reference,
                domain=self.domain,
                **coefficients,
            )
        if self.model == "orthographic":
            return OrthographicLens(fx=fx, fy=fy, cx=cx, cy=cy)
        film: dict[str, Any] = {"fx": fx, "fy": fy, "cx": cx, "cy": cy, "domain": self.domain, **coefficients}
        if self.model == "fisheye":
            return FisheyeLens(**film, max_angle=self.max_angle, behind=self.behind)
        return PinholeLens(**film)

    def gradients(self, found: Gradients) -> dict[str, Array]:
        """Returns the computed gradients of matrices and coefficients; they are 0 for fixed entries."""
        arrays: dict[str, Array] = {}
        for name, suffix in (("view", ""), ("view_end", "_end")):
            if f"camera_rotation{suffix}" in found:
                view = arrays[name] = np.zeros((len(found[f"camera_rotation{suffix}"]), 4, 4), np.float32)
                view[:, :3, :3] = found[f"camera_rotation{suffix}"]
                view[:, :3, 3] = found[f"camera_translation{suffix}"]
        if "camera_intrinsics" in found:
            k = arrays["projection"] = np.zeros((len(found.camera_intrinsics), 3, 3), np.float32)
            k[:, (0, 1, 0, 1), (0, 1, 2, 2)] = found.camera_intrinsics
        for name, count in self.counts:
            kind = "windshield" if name in OF_WINDSHIELD else "lidar" if name in OF_LIDAR else "lens"
            theirs = f"{kind}_{name}"
            if theirs in found:
                arrays[name] = found[theirs][:, :count]
        return arrays


def _stack(array: Array | None, shape: tuple[int, ...]) -> Array | None:
    return None if array is None else array.reshape(-1, *shape)
