"""Lenses of sensors, which are real cameras that project Gaussians by sigma points.

The centre of the first pixel is at (0.5, 0.5); if a calibration has it at 0, add 0.5 to its principal point. The worker
determines how far from the axis a lens can be inverted.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import numpy as np

from lumigrad.client.base.arguments import number, one_of, truth
from lumigrad.client.base.arrays import Float64, array_text, float64_array, summary, to_numpy
from lumigrad.client.errors import InvalidArgument
from lumigrad.protos.drive.lidars import LIDARS

LensDomain = Literal["monotone", "gsplat"]
SpinDirection = Literal["counter_clockwise", "clockwise"]
Reference = Literal["angle_to_pixel_distance", "pixel_distance_to_angle"]
# Names of references in NCore's files and gsplat's classes.
NCORE_REFERENCES: dict[str, Reference] = {
    "ANGLE_TO_PIXELDIST": "angle_to_pixel_distance",
    "PIXELDIST_TO_ANGLE": "pixel_distance_to_angle",
}
Numbers = tuple[float, ...]
# The numbers of coefficients of polynomials of two variables, of the orders 0 to 5.
WINDSHIELD_LENGTHS = (1, 3, 6, 10, 15, 21)


@dataclass(frozen=True, kw_only=True)
class PinholeLens:
    """OpenCV's rational model; without coefficients, a perfect pinhole.

    Attributes:
        fx, fy: focal lengths, pixels.
        cx, cy: principal point, pixels.
        radial: up to six of k1 to k6.
        tangential: p1 p2, or none.
        thin_prism: s1 s2 s3 s4, or none.
        domain: "monotone": points are visible up to where the distortion stops rising; "gsplat": points with a radial
            factor above 0.8 are visible.

    Example:
        lens = PinholeLens(fx=900.0, fy=900.0, cx=640.0, cy=360.0, radial=(-0.28, 0.07))
        camera = Camera.sensor(lens, np.eye(3), np.zeros(3), 1280, 720)
    """

    fx: float
    fy: float
    cx: float
    cy: float
    radial: Numbers = ()
    tangential: Numbers = ()
    thin_prism: Numbers = ()
    domain: LensDomain = "monotone"

    def __post_init__(self) -> None:
        _check(self, radial=range(7), tangential=(0, 2), thin_prism=(0, 4))


@dataclass(frozen=True, kw_only=True)
class OrthographicLens:
    """An orthographic lens, whose rays are parallel.

    Attributes:
        fx, fy: pixels per scene unit.
        cx, cy: principal point, pixels.

    Example:
        lens = OrthographicLens(fx=200.0, fy=200.0, cx=320.0, cy=240.0)  # shows 3.2 x 2.4 scene units in 640 x 480
        camera = Camera.sensor(lens, np.eye(3), np.zeros(3), 640, 480)
    """

    fx: float
    fy: float
    cx: float
    cy: float

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, kw_only=True)
class FisheyeLens:
    """OpenCV's fisheye: f (a + k1 a^3 + k2 a^5 + k3 a^7 + k4 a^9) pixels from the centre, a the angle from the axis.

    Attributes:
        fx, fy: focal lengths, pixels.
        cx, cy: principal point, pixels.
        radial: up to four of k1 to k4.
        max_angle: the largest visible angle from the axis, radians; None: as far as the polynomial rises.
        behind: True: with `depth_order="distance"`, points more than 90 degrees from the axis are visible too; False:
            only points with z > 0 are visible.
        domain: "monotone", or "gsplat", which also ends at the angle (corner's distance) / f.

    Example:
        lens = FisheyeLens(fx=380.0, fy=380.0, cx=640.0, cy=640.0, radial=(0.01, -0.002), max_angle=1.7, behind=True)
        camera = Camera.sensor(lens, np.eye(3), np.zeros(3), 1280, 1280)
        client.render(gaussians, camera, depth_order="distance")
    """

    fx: float
    fy: float
    cx: float
    cy: float
    radial: Numbers = ()
    max_angle: float | None = None
    behind: bool = False
    domain: LensDomain = "monotone"

    def __post_init__(self) -> None:
        _check(self, radial=range(5))


@dataclass(frozen=True, kw_only=True)
class FThetaLens:
    """f-theta: the distance from the principal point in pixels is a polynomial of the angle from the axis.

    Attributes:
        cx, cy: principal point, pixels.
        max_angle: the largest visible angle from the axis, radians, up to pi.
        reference: the polynomial that defines the lens; the other one is only an initial guess.
        angle_to_pixel_distance: up to six coefficients, for powers 0, 1, .. of the angle.
        pixel_distance_to_angle: up to six coefficients, for powers 0, 1, .. of the distance.
        linear: c d e of the linear map [[c, d], [e, 1]] of the image.
        domain: "monotone" or "gsplat".

    Example:
        lens = FThetaLens(cx=960.0, cy=604.0, max_angle=1.1, angle_to_pixel_distance=(0.0, 920.0, 0.0, -40.0))
        camera = Camera.sensor(lens, np.eye(3), np.zeros(3), 1920, 1208)
    """

    cx: float
    cy: float
    max_angle: float
    reference: Reference = "angle_to_pixel_distance"
    angle_to_pixel_distance: Numbers = ()
    pixel_distance_to_angle: Numbers = ()
    linear: Numbers = (1.0, 0.0, 0.0)
    domain: LensDomain = "monotone"

    def __post_init__(self) -> None:
        one_of("reference", self.reference, get_args(Reference), quote='"')
        _check(self, angle_to_pixel_distance=range(7), pixel_distance_to_angle=range(7), linear=(3,))


@dataclass(frozen=True, kw_only=True)
class Windshield:
    """Glass in front of a lens, which maps each of a ray's angles asin x and asin y to a polynomial in both.

    Attributes:
        horizontal, vertical: coefficients c of sum_j y^j sum_(i <= order - j) c x^i, grouped by j: c_00 c_10 .. c_n0,
            c_01 ..; 1, 3, 6, 10, 15 or 21 of them for orders 0 to 5.
        horizontal_inverse, vertical_inverse: coefficients of the inverse map, from behind the glass to its front;
            needed with `response="ray"` unless rays are given.

    Example:
        glass = Windshield(horizontal=(0.0, 1.01, 0.0), vertical=(0.0, 0.0, 0.99))  # 1.01 x and 0.99 y
        lens = PinholeLens(fx=900.0, fy=900.0, cx=640.0, cy=360.0)
        camera = Camera.sensor(lens, np.eye(3), np.zeros(3), 1280, 720, windshield=glass)
    """

    horizontal: Numbers
    vertical: Numbers
    horizontal_inverse: Numbers = ()
    vertical_inverse: Numbers = ()

    def __post_init__(self) -> None:
        back = dict.fromkeys(("horizontal_inverse", "vertical_inverse"), (0, *WINDSHIELD_LENGTHS))
        _check(self, horizontal=WINDSHIELD_LENGTHS, vertical=WINDSHIELD_LENGTHS, **back)


@dataclass(frozen=True, kw_only=True, eq=False)
class SpinningLidar:
    """A lidar that spins about z: x is forward, y to the left and z up. Angles are in radians.

    Row i and column j look in the direction (cos a cos e, sin a cos e, sin e), where e is the row's elevation and a is
    the column's azimuth plus the row's offset.

    Attributes:
        row_elevations: [H] elevations from the highest to the lowest row, H <= 4096.
        column_azimuths: [W] azimuths in the order of scanning, W <= 65536; at most one turn in total, with jumps by
            whole turns allowed.
        row_azimuth_offsets: [H] offsets; None: 0.
        direction: the direction of spinning, seen from above.

    Example:
        lidar = SpinningLidar(row_elevations=np.linspace(0.2, -0.4, 16), column_azimuths=np.linspace(-3.1, 3.1, 90))
        scan = Camera.sensor(lidar, np.eye(3), np.zeros(3), *lidar.size)
        client.render(gaussians, scan, outputs=("alpha", "expected_hit_distance"))
    """

    row_elevations: Float64
    column_azimuths: Float64
    row_azimuth_offsets: Float64 | None = None
    direction: SpinDirection = "counter_clockwise"

    def __post_init__(self) -> None:
        one_of("direction", self.direction, get_args(SpinDirection), quote='"')
        for name in ("row_elevations", "column_azimuths"):
            angles = to_numpy(name, getattr(self, name))
            vars(self)[name] = float64_array(name, angles, (max(1, angles.size),))
        if self.row_azimuth_offsets is not None:
            rows = (len(self.row_elevations),)
            vars(self)["row_azimuth_offsets"] = float64_array("row_azimuth_offsets", self.row_azimuth_offsets, rows)

    def __repr__(self) -> str:
        return summary(type(self).__name__, vars(self))

    @staticmethod
    def device(name: str) -> SpinningLidar:
        """Returns a known lidar, with the angles from its manual.

        Args:
            name: "PANDAR128" (one turn of 1,800 columns) or "AT128" (120 degrees ahead in 1,200 columns). Both have 128
                rows and scan clockwise.

        Raises:
            InvalidArgument: there is no such lidar.

        Example:
            lidar = SpinningLidar.device("AT128")
            scan = Camera.sensor(lidar, np.eye(3), np.zeros(3), *lidar.size)
        """
        one_of("name", name, tuple(LIDARS), quote='"')
        table = LIDARS[name]
        return SpinningLidar(
            row_elevations=table.elevations,
            column_azimuths=table.azimuths,
            row_azimuth_offsets=table.offsets,
            direction="clockwise",
        )

    @property
    def size(self) -> tuple[int, int]:
        """The width and height of its images: the numbers of columns and rows."""
        return len(self.column_azimuths), len(self.row_elevations)


Lens = PinholeLens | OrthographicLens | FisheyeLens | FThetaLens | SpinningLidar


def _check(to: Any, **counts: Collection[int]) -> None:
    """Converts a lens's numbers to float, and its coefficients to tuples; `counts` are the allowed lengths by name."""
    for field in fields(to):
        name, value = field.name, getattr(to, field.name)
        if name in counts:
            vars(to)[name] = _coefficients(name, value, counts[name])
        elif name == "domain":
            one_of(name, value, get_args(LensDomain), quote='"')
        elif name == "behind":
            vars(to)[name] = truth(name, value)
        elif name != "reference" and value is not None:
            converted = vars(to)[name] = number(name, value)
            if not math.isfinite(converted) or (name in ("fx", "fy") and converted == 0.0):
                kind = "a finite number other than 0" if name in ("fx", "fy") else "a finite number"
                raise InvalidArgument.of(name, f"expected {kind}, got {converted}")


def _coefficients(name: str, values: Any, counts: Collection[int]) -> Numbers:
    array = to_numpy(name, values)
    numbers = not array.size or (array.dtype.kind in "fiu" and bool(np.isfinite(array).all()))
    if not numbers or array.ndim != 1 or len(array) not in counts:
        allowed = f"0 to {max(counts)}" if isinstance(counts, range) else " or ".join(map(str, counts))
        raise InvalidArgument.of(name, f"expected {allowed} finite coefficients, got {array_text(array)}")
    return tuple(float(value) for value in array)
