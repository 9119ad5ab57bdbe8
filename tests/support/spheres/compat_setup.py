"""Pulsar's preparation: the native camera record and, per sphere, the drawing order and a rectangle."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from support.spheres.case import SphereCase
from support.spheres.compat_math import EPS, LARGEST, NO_BOX, Floats, dot, f32, length, scaled
from support.spheres.pulsar_camera import VECTORS, camera_vectors


@dataclass(frozen=True)
class NativeCamera:
    """Section 3.3. Pixel coordinates are those of the aperture, of which the film is a part."""

    eye: Floats
    corner: Floats
    step_x: Floats
    step_y: Floats
    axes: Floats
    half_pixel: np.float32
    focal_length: np.float32
    min_depth: np.float32
    max_depth: np.float32
    width: int
    height: int
    shift_x: int
    shift_y: int
    orthogonal: bool

    @property
    def aperture(self) -> tuple[int, int]:
        """Size of the aperture, pixels."""
        return self.width + 2 * abs(self.shift_x), self.height + 2 * abs(self.shift_y)

    @property
    def film(self) -> tuple[int, int]:
        """Top-left pixel of the film in the aperture, (x, y)."""
        return max(0, 2 * self.shift_x), max(0, 2 * self.shift_y)

    @property
    def depth_scale(self) -> Floats:
        """One over the depth range."""
        return np.asarray(f32(1) / (self.max_depth - self.min_depth), f32)


@dataclass(frozen=True)
class Signatures:
    """Section 4, one row per sphere. `box` is x0, x1, y0, y1 with x1 and y1 exclusive."""

    distance: Floats
    direction: Floats
    near: Floats
    visible: NDArray[np.bool_]
    box: NDArray[np.int64]

    @property
    def large(self) -> NDArray[np.bool_]:
        """Whether the rectangle is at least three pixels wide and high, as gradients require."""
        return np.asarray((self.box[:, 1] >= self.box[:, 0] + 3) & (self.box[:, 3] >= self.box[:, 2] + 3))


def native_camera(case: SphereCase) -> NativeCamera:
    """Section 3.3, from the parameters in float32 and the vectors of section 3.2."""
    vectors = camera_vectors(
        torch.from_numpy(case.camera), case.width, case.height, orthogonal=case.orthogonal,
        right_handed=case.right_handed, first_r_then_t=case.first_r_then_t,
    )  # fmt: skip
    eye, first, step_x, step_y = (getattr(vectors, name).numpy() for name in VECTORS)
    shift_x, shift_y = (int(value) for value in vectors.principal_point)
    normal = np.cross(step_y, step_x).astype(f32)
    normal = normal / length(normal)
    if case.right_handed:
        normal = -normal
    corner = first - step_x * f32(abs(shift_x))
    corner = corner - step_y * f32(abs(shift_y))
    axes = np.stack([step_x / length(step_x), step_y / length(step_y), normal])
    nearest = f32(case.min_depth) if case.min_depth else f32(float(vectors.focal_length)) + f32(2) * EPS
    return NativeCamera(
        eye=eye, corner=corner - eye, step_x=step_x, step_y=step_y, axes=axes.astype(f32),
        half_pixel=f32(f32(0.5) * length(step_x)), focal_length=f32(float(vectors.focal_length)),
        min_depth=f32(nearest), max_depth=f32(case.max_depth), width=case.width, height=case.height, shift_x=shift_x,
        shift_y=shift_y, orthogonal=case.orthogonal,
    )  # fmt: skip


def rotated(camera: NativeCamera, vectors: Floats) -> Floats:
    """World vectors [..., 3] in the camera's axes."""
    return np.stack([dot(vectors, axis) for axis in camera.axes], -1)


def rays(camera: NativeCamera, x: NDArray[np.int64], y: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Section 5: the rays of aperture pixels before and after normalisation."""
    across = camera.corner + scaled(np.broadcast_to(camera.step_x, (*x.shape, 3)), x.astype(f32))
    raw = across + scaled(np.broadcast_to(camera.step_y, (*y.shape, 3)), y.astype(f32))
    if camera.orthogonal:
        return raw, np.broadcast_to(camera.axes[2], raw.shape)
    return raw, scaled(raw, f32(1) / length(raw))


def signatures(camera: NativeCamera, positions: Floats, radii: Floats) -> Signatures:
    """Section 4."""
    offset = positions - camera.eye
    distance = length(offset)
    with np.errstate(invalid="ignore", divide="ignore"):
        direction = offset / distance[:, None]
        turned = rotated(camera, offset)
        near = (turned[:, 2] if camera.orthogonal else distance) - radii
        visible = (near >= camera.min_depth) & (near <= camera.max_depth)
        visible &= dot(direction, camera.axes[2]) >= EPS
        low_x, high_x, low_y, high_y = _extent(camera, turned, radii)
    left, top = (f32(value) for value in camera.film)
    right, bottom = left + f32(camera.width), top + f32(camera.height)
    visible &= (high_x > left) & (low_x < right - f32(0.5)) & (high_y > top) & (low_y <= bottom - f32(0.5))
    box = np.full((len(radii), 4), NO_BOX, np.int64)
    limits = [
        np.trunc(np.maximum(low_x, left)),
        np.minimum(np.ceil(high_x) + f32(1), right),
        np.trunc(np.maximum(low_y, top)),
        np.minimum(np.ceil(high_y) + f32(1), bottom),
    ]
    box[visible] = np.stack(limits, -1)[visible]
    return Signatures(distance, direction, np.where(visible, near, LARGEST), visible, box)


def _extent(camera: NativeCamera, turned: Floats, radii: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Section 4: the rectangle before it is cut to the film, in aperture pixels."""
    per_unit = f32(1) / (f32(2) * camera.half_pixel)
    result = []
    for axis, size, sign in ((0, camera.aperture[0], f32(1)), (1, camera.aperture[1], f32(-1))):
        middle = (f32(size) - f32(1)) * f32(0.5)
        q, z = turned[:, axis], turned[:, 2]
        if camera.orthogonal:
            ends = [(q - radii) * per_unit + middle, (q + radii) * per_unit + middle]
        else:
            reach = np.maximum(np.sqrt(q * q + z * z), EPS)
            bearing = np.where(q > 0, f32(1), f32(-1)) * np.arccos(np.clip(z / reach, f32(-1), f32(1))) * sign
            half_angle = np.arcsin(np.clip(radii / reach, f32(-1), f32(1)))
            scale = sign * per_unit
            ends = [
                np.tan(bearing + turn * half_angle) * camera.focal_length * scale + middle for turn in (f32(-1), f32(1))
            ]
        result += [np.minimum(*ends), np.maximum(*ends)]
    return result[0], result[1], result[2], result[3]
