"""Lenses of sensors: real cameras, whose pixels are exact functions of points in the camera's frame.

A lens looks along +z, with x to the right and y down. The centre of the first pixel is at (0.5, 0.5); calibrations that
put it at 0 have a principal point that is smaller by 0.5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np

from lumigrad.kernels.checks import check, is_number
from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.gaussians.lens import first_fold, smallest_root
from lumigrad.kernels.gaussians.lidar import SpinningLidar

Array = np.ndarray
Numbers = tuple[float, ...]
DOMAINS = ("monotone", "gsplat")
REFERENCES = ("angle_to_pixel_distance", "pixel_distance_to_angle")
WINDSHIELD_ORDER = 5
# A pinhole's Jacobian is evaluated at the mean, clamped to this fraction of the image's size beyond its edges.
JACOBIAN_MARGIN = 0.15
# Beyond these numbers, powers in double overflow.
_LARGEST = 1e6
# Limit of X/Z where a distortion never folds back.
_WIDEST = 10.0


@dataclass(frozen=True, kw_only=True)
class _Film:
    fx: float
    fy: float
    cx: float
    cy: float

    def __post_init__(self) -> None:
        for name in ("fx", "fy"):
            value = getattr(self, name)
            ok = is_number(value) and 0.0 < abs(float(value)) < math.inf
            check(ok, name, "a finite focal length other than 0, in pixels", value)
        _check_finite(self, ("cx", "cy"), "a finite principal point, in pixels")


@dataclass(frozen=True, kw_only=True)
class PinholeLens(_Film):
    """OpenCV's pinhole with radial, tangential and thin-prism distortion; without coefficients a perfect pinhole.

    Attributes:
        fx, fy: Focal lengths, pixels.
        cx, cy: Principal point, pixels.
        radial: Up to six of k1 to k6: the factor is (1 + k1 r + k2 r^2 + k3 r^3) / (1 + k4 r + k5 r^2 + k6 r^3), with r
            the square of the distance from the axis at depth 1.
        tangential: p1 p2, or none.
        thin_prism: s1 s2 s3 s4, or none.
        domain: Which points are visible: "monotone", up to where the distorted distance stops rising; "gsplat", where
            the factor is above 0.8.

    Raises:
        ArgumentError: A value is out of range.
    """

    radial: Numbers = ()
    tangential: Numbers = ()
    thin_prism: Numbers = ()
    domain: str = "monotone"

    def __post_init__(self) -> None:
        super().__post_init__()
        _set_numbers(self, "radial", range(7))
        _set_numbers(self, "tangential", (0, 2))
        _set_numbers(self, "thin_prism", (0, 4))
        _check_domain(self.domain)

    @property
    def kind(self) -> str:
        """The extension's name of the lens."""
        return "opencv" if self.radial or self.tangential or self.thin_prism else "pinhole"

    def limit(self, width: int, height: int) -> float:
        """The largest distance from the axis, at depth 1, that is visible."""
        k1, k2, k3, k4, k5, k6 = (*self.radial, *(0.0,) * (6 - len(self.radial)))
        if self.domain == "gsplat":
            return math.inf
        return math.sqrt(first_fold((1.0, k1, k2, k3), (1.0, k4, k5, k6)))


@lru_cache(maxsize=256)
def jacobian_limits(lens: PinholeLens, width: int, height: int) -> tuple[float, float, float, float]:
    """Limits to which a pinhole's Jacobian clamps X/Z (min, max) and Y/Z (min, max): the image's edges and a margin.

    With radial distortion the limits also include everything visible within these edges.
    """
    steps = np.linspace(-JACOBIAN_MARGIN, 1 + JACOBIAN_MARGIN, 9)
    x, y = np.meshgrid((steps * width - lens.cx) / lens.fx, (steps * height - lens.cy) / lens.fy)
    stretch = _stretch(lens, np.hypot(x, y)) if any(lens.radial) else np.ones_like(x)
    x, y = np.stack([x, x * stretch]), np.stack([y, y * stretch])
    return float(x.min()), float(x.max()), float(y.min()), float(y.max())


def _stretch(lens: PinholeLens, distances: Array) -> Array:
    """Factors of distorted distances from the axis that undo a radial distortion."""
    k1, k2, k3, k4, k5, k6 = (*lens.radial, *(0.0,) * (6 - len(lens.radial)))
    fold = math.sqrt(first_fold((1.0, k1, k2, k3), (1.0, k4, k5, k6)))
    low, high = np.zeros_like(distances), np.full_like(distances, min(fold, _WIDEST))
    for _ in range(50):
        middle = 0.5 * (low + high)
        r = middle**2
        shown = middle * (1 + r * (k1 + r * (k2 + r * k3))) / (1 + r * (k4 + r * (k5 + r * k6)))
        low, high = np.where(shown < distances, middle, low), np.where(shown < distances, high, middle)
    stretch: Array = low / np.maximum(distances, 1e-12)
    return stretch


@dataclass(frozen=True, kw_only=True)
class OrthographicLens(_Film):
    """Parallel rays along z.

    Attributes:
        fx, fy: Pixels per scene unit.
        cx, cy: Principal point, pixels.

    Raises:
        ArgumentError: A value is out of range.
    """

    kind = "orthographic"

    def limit(self, width: int, height: int) -> float:
        """Everything in front of the camera is visible."""
        return math.inf


@dataclass(frozen=True, kw_only=True)
class FisheyeLens(_Film):
    """OpenCV's fisheye: the distance is f (a + k1 a^3 + k2 a^5 + k3 a^7 + k4 a^9), a being the angle from the axis.

    Attributes:
        fx, fy: Focal lengths, pixels.
        cx, cy: Principal point, pixels.
        radial: Up to four of k1 to k4.
        max_angle: The largest visible angle, radians, at most pi; None: as far as the polynomial rises.
        behind: Whether points more than 90 degrees from the axis are visible too, with `Settings.depth_order`
            "distance"; otherwise Z must be above 0.
        domain: "monotone": angles up to where the polynomial stops rising; "gsplat": gsplat's limits, which also end at
            the corners' distance over f, and some of which are found by Newton's method.

    Raises:
        ArgumentError: A value is out of range, or the polynomial stops rising before `max_angle`.
    """

    radial: Numbers = ()
    max_angle: float | None = None
    behind: bool = False
    domain: str = "monotone"
    kind = "fisheye"

    def __post_init__(self) -> None:
        super().__post_init__()
        _set_numbers(self, "radial", range(5))
        check(isinstance(self.behind, bool), "behind", "True or False", self.behind)
        _check_domain(self.domain)
        if self.max_angle is None:
            return
        _check_angle(self.max_angle)
        rises_to = math.sqrt(smallest_root(self._slope()))
        ok = self.domain != "monotone" or self.max_angle <= rises_to * (1 + 1e-6)
        check(ok, "max_angle", f"at most {rises_to:.6g}, up to where the polynomial rises, radians", self.max_angle)

    def _slope(self) -> Numbers:
        """Coefficients of the derivative in powers of the squared angle."""
        k1, k2, k3, k4 = (*self.radial, *(0.0,) * (4 - len(self.radial)))
        return (1.0, 3 * k1, 5 * k2, 7 * k3, 9 * k4)

    def limit(self, width: int, height: int) -> float:
        """The largest visible angle, radians."""
        given = math.pi if self.max_angle is None else float(self.max_angle)
        if self.domain == "monotone":
            return min(math.sqrt(smallest_root(self._slope())), given)
        corner = math.hypot(max(width - self.cx, self.cx), max(height - self.cy, self.cy))
        return min(self._gsplat_fold(), max(corner / self.fx, corner / self.fy), given)

    def guess(self, width: int, height: int) -> float:
        """The ratio of angle to distance / f from which gsplat's search for the angle of a pixel starts."""
        return self.limit(width, height) / max(width / 2 / self.fx, height / 2 / self.fy)

    def _gsplat_fold(self) -> float:
        """Angle at which gsplat takes the polynomial to stop rising: with k4 the root that Newton finds from 1.57."""
        slope = self._slope()
        if abs(slope[4]) < 9e-10:
            return math.sqrt(smallest_root(slope[:4]))
        angle = 1.57
        for _ in range(20):
            value = sum(c * angle ** (2 * i) for i, c in enumerate(slope))
            rate = sum(2 * i * c * angle ** (2 * i - 1) for i, c in enumerate(slope) if i)
            if rate == 0.0:
                return math.inf
            angle -= value / rate
            if abs(value / rate) < 1e-6:
                return angle if angle > 0.0 else math.inf
        return math.inf


@dataclass(frozen=True, kw_only=True)
class FThetaLens:
    """f-theta: the distance from the principal point, in pixels, is a polynomial of the angle from the axis.

    Attributes:
        cx, cy: Principal point, pixels.
        reference: Which polynomial defines the lens, one of `REFERENCES`; the other is a first guess of the inverse.
        angle_to_pixel_distance: Up to six coefficients, of the powers 0, 1, .. of the angle.
        pixel_distance_to_angle: Up to six coefficients, of the powers 0, 1, .. of the distance.
        max_angle: The largest visible angle, radians, at most pi; angles above pi / 2 are behind the camera.
        linear: c d e of the map [[c, d], [e, 1]] of the image plane.
        domain: "monotone" or "gsplat": how the inverse is found (with "gsplat" in three steps of Newton's method).

    Raises:
        ArgumentError: A value is out of range, or the reference polynomial does not rise at 0 or, with "monotone", not
            all the way to `max_angle`.
    """

    cx: float
    cy: float
    max_angle: float
    reference: str = "angle_to_pixel_distance"
    angle_to_pixel_distance: Numbers = ()
    pixel_distance_to_angle: Numbers = ()
    linear: Numbers = (1.0, 0.0, 0.0)
    domain: str = "monotone"
    kind = "ftheta"
    behind = True

    def __post_init__(self) -> None:
        _check_finite(self, ("cx", "cy"), "a finite principal point, in pixels")
        check(self.reference in REFERENCES, "reference", f"one of {REFERENCES}", self.reference)
        _check_domain(self.domain)
        for name in REFERENCES:
            _set_numbers(self, name, range(7))
        _set_numbers(self, "linear", (3,))
        c, d, e = self.linear
        check(abs(c - d * e) > 1e-8, "linear", "c d e with c - d e other than 0", self.linear)
        _check_angle(self.max_angle)
        polynomial: Numbers = getattr(self, self.reference)
        rises = len(polynomial) > 1 and polynomial[1] > 0.0
        check(rises, self.reference, "a polynomial that rises at 0: its second coefficient is above 0", polynomial)
        largest = self._reached()
        if self.domain == "monotone" and self.max_angle > largest * (1 + 1e-6):
            expected = f"at most {largest:.6g}, up to where {self.reference} rises, radians"
            raise ArgumentError("max_angle", expected, f"{self.max_angle}")

    def _fold(self) -> float:
        """Argument at which the reference polynomial stops rising."""
        return smallest_root([i * c for i, c in enumerate(getattr(self, self.reference))][1:])

    def _reached(self) -> float:
        """The angle up to which the reference polynomial rises."""
        fold = self._fold()
        if self.reference == REFERENCES[0] or math.isinf(fold):
            return fold
        return float(np.polynomial.Polynomial(self.pixel_distance_to_angle)(fold))

    def limit(self, width: int, height: int) -> float:
        """The largest visible angle, radians."""
        return float(self.max_angle)

    @property
    def distance_limit(self) -> float:
        """The distance in pixels up to which `pixel_distance_to_angle` rises, where it is the reference."""
        return min(self._fold(), 1e6) if self.reference == REFERENCES[1] else 0.0


@dataclass(frozen=True, kw_only=True)
class Windshield:
    """Glass in front of a lens: a ray's angles asin x and asin y become polynomials of both.

    Attributes:
        horizontal, vertical: Coefficients c of sum_j y^j sum_(i <= order - j) c x^i, grouped by j: c_00 c_10 .. c_n0,
            c_01 ..; 1, 3, 6, 10, 15 or 21 of them for the orders 0 to 5.
        horizontal_inverse, vertical_inverse: The same on the way back, from behind the glass to the front; needed with
            `Settings.response` "ray".

    Raises:
        ArgumentError: A value is not finite, or the number of coefficients is wrong.
    """

    horizontal: Numbers
    vertical: Numbers
    horizontal_inverse: Numbers = ()
    vertical_inverse: Numbers = ()

    def __post_init__(self) -> None:
        counts = [len(windshield_places(order)) for order in range(WINDSHIELD_ORDER + 1)]
        for name in ("horizontal", "vertical"):
            _set_numbers(self, name, counts)
            _set_numbers(self, f"{name}_inverse", [0, *counts])


SensorLens = PinholeLens | OrthographicLens | FisheyeLens | FThetaLens | SpinningLidar


def windshield_places(order: int) -> list[int]:
    """Places of the coefficients of a polynomial of this order among those of the largest order."""
    places: list[int] = []
    begin = 0
    for j in range(WINDSHIELD_ORDER + 1):
        if j <= order:
            places.extend(range(begin, begin + order - j + 1))
        begin += WINDSHIELD_ORDER - j + 1
    return places


def windshield_order(count: int) -> int:
    """The order of a polynomial with `count` coefficients."""
    return (math.isqrt(1 + 8 * count) - 3) // 2


@dataclass(frozen=True)
class Group:
    """Adjacent parameters of lenses.

    Attributes:
        name: The attribute of a lens or windshield.
        begin, count: Their range.
    """

    name: str
    begin: int
    count: int


def _groups() -> tuple[Group, ...]:
    counts = {"radial": 6, "tangential": 2, "thin_prism": 4, REFERENCES[0]: 6, REFERENCES[1]: 6, "linear": 3}
    groups, begin = [], 4
    for name, count in (*counts.items(), ("horizontal", 21), ("vertical", 21)):
        groups.append(Group(name, begin, count))
        begin += count
    return tuple(groups)


GROUPS = _groups()
PARAMETERS = GROUPS[-1].begin + GROUPS[-1].count


def packed(lens: SensorLens, windshield: Windshield | None) -> list[float]:
    """All parameters in the extension's order, [PARAMETERS]."""
    values = np.zeros(PARAMETERS)
    values[:4] = [float(getattr(lens, name, 0.0)) for name in ("fx", "fy", "cx", "cy")]
    for group in GROUPS:
        if group.name in ("horizontal", "vertical"):
            if windshield is not None:
                given = getattr(windshield, group.name)
                values[np.add(windshield_places(windshield_order(len(given))), group.begin)] = given
        else:
            given = getattr(lens, group.name, ())
            values[group.begin : group.begin + len(given)] = given
    return [float(value) for value in values]


INVERSE_BEGINS = {"horizontal": 0, "vertical": GROUPS[-1].count}


def packed_inverse(windshield: Windshield | None) -> list[float]:
    """The coefficients of the inverse in the extension's order; 0 for missing ones."""
    values = np.zeros(2 * GROUPS[-1].count)
    for name, begin in INVERSE_BEGINS.items():
        given = () if windshield is None else getattr(windshield, f"{name}_inverse")
        if given:
            values[np.add(windshield_places(windshield_order(len(given))), begin)] = given
    return [float(value) for value in values]


def groups_of(lens: SensorLens) -> dict[str, Group]:
    """The groups of parameters that a lens has."""
    names = {item.name for item in fields(lens)}
    return {group.name: group for group in GROUPS if group.name in names}


def _set_numbers(to: object, name: str, counts: Sequence[int] | range) -> None:
    try:
        values = np.asarray(getattr(to, name), np.float64).reshape(-1)
    except (TypeError, ValueError) as error:
        raise ArgumentError(name, "finite numbers", repr(getattr(to, name))) from error
    fits = len(values) in counts and bool((np.abs(values) <= _LARGEST).all())
    allowed = f"{counts[0]} to {counts[-1]}" if isinstance(counts, range) else " or ".join(map(str, counts))
    check(fits, name, f"{allowed} coefficients in [-{_LARGEST:g}, {_LARGEST:g}]", values.tolist())
    object.__setattr__(to, name, tuple(values.tolist()))


def _check_finite(of: object, names: Sequence[str], expected: str) -> None:
    for name in names:
        value = getattr(of, name)
        check(is_number(value) and math.isfinite(float(value)), name, expected, value)


def _check_domain(domain: str) -> None:
    check(domain in DOMAINS, "domain", f"one of {DOMAINS}", domain)


def _check_angle(angle: float) -> None:
    ok = is_number(angle) and 0.0 < float(angle) <= math.pi
    check(ok, "max_angle", "an angle above 0, at most pi, radians", angle)
