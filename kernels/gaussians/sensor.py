"""Sensors: cameras with a real lens, a windshield and a rolling shutter, and the gradients of their parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lumigrad.kernels import _native
from lumigrad.kernels.checks import check
from lumigrad.kernels.gaussians.lidar import SpinningLidar
from lumigrad.kernels.gaussians.rotation import LEAST_ANGLE, cross_matrix, turn_between
from lumigrad.kernels.gaussians.sensor_lenses import (
    GROUPS,
    INVERSE_BEGINS,
    PARAMETERS,
    FisheyeLens,
    FThetaLens,
    OrthographicLens,
    SensorLens,
    Windshield,
    groups_of,
    packed,
    packed_inverse,
    windshield_order,
    windshield_places,
)

Array = np.ndarray
SHUTTERS = ("global", "top_to_bottom", "left_to_right", "bottom_to_top", "right_to_left")
LIDAR_SHUTTERS = ("global", "left_to_right")
ROW_TIMES = ("continuous", "staircase")


@dataclass(frozen=True, eq=False)
class SensorSource:
    """A sensor: its lens, and the poses between which it moves during the exposure. Float64.

    Attributes:
        lens: The lens.
        rotation: [3, 3], world to camera, at the start of the exposure.
        translation: [3], scene units.
        end_rotation: [3, 3], at the end; as `rotation` with a global shutter.
        end_translation: [3].
        shutter: One of `SHUTTERS`.
        row_time: One of `ROW_TIMES`.
        windshield: The glass in front of the lens, or None.
    """

    lens: SensorLens
    rotation: Array
    translation: Array
    end_rotation: Array
    end_translation: Array
    shutter: str
    row_time: str
    windshield: Windshield | None

    def __post_init__(self) -> None:
        check(isinstance(self.lens, SensorLens), "lens", "a lens", type(self.lens).__name__)
        check(self.shutter in SHUTTERS, "shutter", f"one of {SHUTTERS}", self.shutter)
        check(self.row_time in ROW_TIMES, "row_time", f"one of {ROW_TIMES}", self.row_time)
        if self.windshield is not None:
            ok = isinstance(self.windshield, Windshield)
            check(ok, "windshield", "a Windshield or None", type(self.windshield).__name__)
            check(not isinstance(self.lens, OrthographicLens), "windshield", "none with an orthographic lens", "one")
            check(not isinstance(self.lens, SpinningLidar), "windshield", "none with a lidar", "one")
        if isinstance(self.lens, SpinningLidar):
            ok = self.shutter in LIDAR_SHUTTERS
            check(ok, "shutter", f"one of {LIDAR_SHUTTERS} with a lidar, whose columns are in order", self.shutter)

    @property
    def rolling(self) -> bool:
        """Whether the camera moves during the exposure."""
        return self.shutter != "global"

    @property
    def eye(self) -> Array:
        """The viewpoint for spherical harmonics, [3]: the mean of the centres at the start and at the end."""
        # A fixed order of the sums, not that of a BLAS, so that native code gives the same bits.
        start, end = (
            0.0 - (first + second + third)
            for first, second, third in (
                self.rotation * self.translation[:, None],
                self.end_rotation * self.end_translation[:, None],
            )
        )
        mean: Array = 0.5 * (start + end)
        return mean

    def turn(self) -> tuple[Array, float]:
        """The axis [3] and the angle of the rotation from the start to the end, seen from the camera."""
        return turn_between(self.rotation, self.end_rotation)

    def native(self, width: int, height: int) -> Any:
        """The extension's sensor."""
        axis, angle = self.turn() if self.rolling else (np.array([1.0, 0.0, 0.0]), 0.0)
        lens = self.lens
        return _native.make_gaussian_sensor(
            lens=lens.kind,
            shutter=self.shutter,
            continuous=self.row_time == "continuous",
            monotone=getattr(lens, "domain", "monotone") == "monotone",
            inverse_reference=isinstance(lens, FThetaLens) and lens.reference == "pixel_distance_to_angle",
            windshield=self.windshield is not None,
            behind=getattr(lens, "behind", False),
            parameters=packed(lens, self.windshield),
            inverse_windshield=packed_inverse(self.windshield),
            guess=lens.guess(width, height) if isinstance(lens, FisheyeLens) else 0.0,
            limit=lens.limit(width, height),
            distance_limit=lens.distance_limit if isinstance(lens, FThetaLens) else 0.0,
            rotation=self.rotation.reshape(-1).tolist(),
            translation=self.translation.tolist(),
            axis=axis.tolist(),
            angle=max(angle, LEAST_ANGLE) if self.rolling else 0.0,
            motion=(self.end_translation - self.translation).tolist(),
            clockwise=isinstance(lens, SpinningLidar) and lens.direction == "clockwise",
            field=lens.field() if isinstance(lens, SpinningLidar) else [0.0] * 4,
        )


def gradients(sources: Sequence[SensorSource], d_eye: Array, sums: Array) -> dict[str, Array]:
    """Gradients of the cameras' poses and intrinsics.

    Args:
        sources: V sensors.
        d_eye: [V, 3] dL/d eye.
        sums: [V, S] the engine's sums, see kSensorSums.

    Returns:
        By name, float64, at the start and, with "_end", at the end of the exposure: "camera_pose" [V, 6] (left
        perturbation exp(xi) V; rho x y z, phi x y z), "camera_translation" [V, 3], and "camera_rotation" [V, 3, 3], the
        gradient among the rotations; "camera_intrinsics" [V, 4].
    """
    found: dict[str, list[Array]] = {}
    for source, eye, row in zip(sources, d_eye, sums, strict=True):
        for name, value in _poses(source, eye, row[PARAMETERS:].reshape(4, 3)).items():
            found.setdefault(name, []).append(value)
    return {"camera_intrinsics": sums[:, :4], **{name: np.stack(values) for name, values in found.items()}}


def _poses(source: SensorSource, d_eye: Array, sums: Array) -> dict[str, Array]:
    ends = (source.rotation, source.translation), (source.end_rotation, source.end_translation)
    start, end = ([*rotation.flat, *translation] for rotation, translation in ends)
    found = _native.sensor_pose_gradients(start, end, source.rolling, d_eye.tolist(), sums.ravel().tolist())
    result = {}
    for suffix, (rotation, _), (d_t, phi, motion) in zip(("", "_end"), ends, np.reshape(found, (2, 3, 3)), strict=True):
        result["camera_translation" + suffix] = d_t
        result["camera_rotation" + suffix] = 0.5 * cross_matrix(phi) @ rotation
        result["camera_pose" + suffix] = np.concatenate([d_t, motion])
    return result


def lens_gradients(sources: Sequence[SensorSource], sums: Array, inverse: Array | None = None) -> dict[str, Array]:
    """Gradients of the lenses, all of one kind, by name: "lens_radial" [V, k], .. and "windshield_horizontal", ..

    Args:
        sources: V sensors.
        sums: [V, S] the engine's sums.
        inverse: [V, I] along rays: the sums of the windshield's inverse.
    """
    found = {
        f"lens_{name}": sums[:, group.begin : group.begin + _width(sources[0].lens, name, group.count)]
        for name, group in groups_of(sources[0].lens).items()
    }
    for group in GROUPS:
        if group.name in ("horizontal", "vertical") and sources[0].windshield is not None:
            count = len(getattr(sources[0].windshield, group.name))
            places = np.add(windshield_places(windshield_order(count)), group.begin)
            found[f"windshield_{group.name}"] = sums[:, places]
            back = getattr(sources[0].windshield, f"{group.name}_inverse")
            if inverse is not None and back:
                begin = INVERSE_BEGINS[group.name]
                places = np.add(windshield_places(windshield_order(len(back))), begin)
                found[f"windshield_{group.name}_inverse"] = inverse[:, places]
    return found


def _width(lens: SensorLens, name: str, count: int) -> int:
    return 4 if lens.kind == "fisheye" and name == "radial" else count
