"""Pulsar's backward pass in numpy: normalised gradients from the tracked spheres, section 7 of the original's spec."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from support.spheres.case import SphereCase, sphere_ids
from support.spheres.compat_math import EPS, Floats, dot, f32, fast_exp, length, scaled
from support.spheres.compat_pairs import Pairs, pairs
from support.spheres.compat_reference import Rendered
from support.spheres.pulsar_camera import VECTORS, camera_vectors

Doubles = NDArray[np.float64]
Gradients = dict[str, Floats]


@dataclass(frozen=True)
class _Tracked:
    """One tracked sphere per entry, and the gradient of its weight."""

    sphere: NDArray[np.int32]
    x: NDArray[np.int64]
    y: NDArray[np.int64]
    pair: Pairs
    opacity: Floats
    weight_gradient: Floats
    softmax: Floats
    color_gradient: Floats

    def only(self, keep: NDArray[np.bool_]) -> _Tracked:
        """The entries to keep."""
        pair = Pairs(**{name: value[keep] for name, value in vars(self.pair).items()})
        rest = {name: value[keep] for name, value in vars(self).items() if name != "pair"}
        return _Tracked(pair=pair, **rest)


class _Sums:
    """Sums over pixels, one row per sphere, in double precision."""

    def __init__(self, count: int, channels: int) -> None:
        self.spheres = {
            "positions": np.zeros((count, 3)),
            "colors": np.zeros((count, channels)),
            "radii": np.zeros(count),
            "opacities": np.zeros(count),
        }
        self.camera = {name: np.zeros((count, 3)) for name in VECTORS}
        self.count = np.zeros(count, np.int64)


def gradients(case: SphereCase, rendered: Rendered) -> Gradients:
    """Section 7.1 and 7.2: of spheres and of the four camera vectors, for the case's output gradient.

    Where the original divides zero by zero the term is zero here: a ray through a centre, nothing visible.
    """
    sums = _Sums(len(case.radii), case.channels)
    ids = sphere_ids(rendered.info)
    for slot in range(ids.shape[-1]):
        rows, columns = np.nonzero(ids[..., slot] >= 0)
        tracked = _tracked(case, rendered, ids[rows, columns, slot], rows, columns)
        _add_weights(sums, tracked, case)
        large = tracked.only(rendered.signatures.large[tracked.sphere])
        _add_geometry(sums, large, case, rendered)
    return _normalised(sums, rendered)


def camera_gradient(case: SphereCase, native: Gradients) -> Floats:
    """Section 7.3: the chain from the four vectors to the camera parameters."""
    parameters = torch.from_numpy(case.camera.astype(np.float64)).requires_grad_()
    vectors = camera_vectors(
        parameters, case.width, case.height, orthogonal=case.orthogonal, right_handed=case.right_handed,
        first_r_then_t=case.first_r_then_t,
    )  # fmt: skip
    total = sum((getattr(vectors, name) * torch.from_numpy(native[name])).sum() for name in VECTORS)
    (gradient,) = torch.autograd.grad(total, [parameters])
    return gradient.numpy().astype(f32)


def _tracked(
    case: SphereCase, rendered: Rendered, sphere: NDArray[np.int32], rows: NDArray[np.int64], columns: NDArray[np.int64]
) -> _Tracked:
    """Section 7, up to the derivative with respect to a pair's weight."""
    camera, found = rendered.camera, rendered.signatures
    x, y = columns + camera.film[0], rows + camera.film[1]
    pair = pairs(camera, found.direction[sphere], found.distance[sphere], case.radii[sphere], x, y)
    opacity = np.ones(len(sphere), f32) if case.opacities is None else case.opacities[sphere]
    maximum, total = rendered.info[rows, columns, 0], rendered.info[rows, columns, 1]
    softmax = fast_exp((f32(1) - pair.normalized_depth) / f32(case.gamma) * opacity - maximum)
    weight = np.maximum(np.minimum(pair.closeness * softmax * opacity, total - EPS), f32(0))
    rest = total - weight
    upstream, colors = case.output_gradient[rows, columns], case.colors[sphere]
    others = scaled(rendered.image[rows, columns], total) - scaled(colors, weight)
    # One sphere has nearly all the weight at a small gamma, and the rest is rounding noise: the gradient then depends
    # on the order of operations.
    others = scaled(others, f32(1) / np.maximum(rest, EPS))
    factor = rest * (f32(1) / np.maximum(total * total, EPS))
    weight_gradient = scaled(upstream * (colors - others), factor).sum(-1)
    color_gradient = scaled(upstream, weight * (f32(1) / np.maximum(total, EPS)))
    return _Tracked(sphere, x, y, pair, opacity, weight_gradient, softmax, color_gradient)


def _add_weights(sums: _Sums, tracked: _Tracked, case: SphereCase) -> None:
    """Colour, opacity and the count: spheres of any size."""
    pair, opacity = tracked.pair, tracked.opacity
    growth = f32(1) + opacity * (f32(1) - pair.normalized_depth) / f32(case.gamma)
    opacity_gradient = tracked.weight_gradient * tracked.softmax * pair.closeness * growth
    np.add.at(sums.spheres["colors"], tracked.sphere, tracked.color_gradient)
    np.add.at(sums.spheres["opacities"], tracked.sphere, opacity_gradient)
    np.add.at(sums.count, tracked.sphere, 1)


def _add_geometry(sums: _Sums, tracked: _Tracked, case: SphereCase, rendered: Rendered) -> None:
    """Radius, position and camera: spheres with a rectangle of at least three by three pixels."""
    camera, pair = rendered.camera, tracked.pair
    radius = case.radii[tracked.sphere]
    depth_range = camera.max_depth - camera.min_depth
    by_depth = -pair.closeness * tracked.softmax * tracked.opacity * tracked.opacity / (f32(case.gamma) * depth_range)
    by_closeness = tracked.softmax * tracked.opacity
    half_chord = np.maximum(pair.half_chord, EPS)
    radius_gradient = by_closeness * pair.chord_length / (radius * radius) - by_depth * radius / half_chord
    np.add.at(sums.spheres["radii"], tracked.sphere, tracked.weight_gradient * radius_gradient)
    add = _add_orthogonal if camera.orthogonal else _add_perspective
    add(sums, tracked, radius, half_chord, by_depth, by_closeness, rendered)


def _add_perspective(
    sums: _Sums,
    tracked: _Tracked,
    radius: Floats,
    half_chord: Floats,
    by_depth: Floats,
    by_closeness: Floats,
    rendered: Rendered,
) -> None:
    pair, found = tracked.pair, rendered.signatures
    direction, distance = found.direction[tracked.sphere], found.distance[tracked.sphere]
    across = pair.centre - scaled(pair.ray, pair.along)
    slope = across / half_chord[:, None]
    projection = dot(pair.ray, pair.chord)
    ray_length = length(pair.raw_ray)
    # A ray through the centre has no direction in which closeness falls.
    central = pair.chord_length == 0
    per_chord = np.where(central, f32(0), by_closeness / np.where(central, f32(1), pair.chord_length * radius))
    ray_gradient = scaled(across - scaled(slope, pair.along), by_depth / ray_length)
    turning = pair.chord - scaled(pair.ray, projection)
    ray_gradient = ray_gradient + scaled(turning, per_chord * (distance / ray_length))
    centre_gradient = scaled(pair.ray + slope, by_depth)
    centre_gradient = centre_gradient + scaled(scaled(direction, projection) - pair.chord, per_chord)
    ray_gradient = scaled(ray_gradient, tracked.weight_gradient)
    centre_gradient = scaled(centre_gradient, tracked.weight_gradient)
    np.add.at(sums.spheres["positions"], tracked.sphere, centre_gradient)
    np.add.at(sums.camera["eye"], tracked.sphere, -centre_gradient - ray_gradient)
    np.add.at(sums.camera["pixel_0_0_center"], tracked.sphere, ray_gradient)
    np.add.at(sums.camera["pixel_vec_x"], tracked.sphere, scaled(ray_gradient, tracked.x.astype(f32)))
    np.add.at(sums.camera["pixel_vec_y"], tracked.sphere, scaled(ray_gradient, tracked.y.astype(f32)))


def _add_orthogonal(
    sums: _Sums,
    tracked: _Tracked,
    radius: Floats,
    half_chord: Floats,
    by_depth: Floats,
    by_closeness: Floats,
    rendered: Rendered,
) -> None:
    """The original's formulas, with their component-wise products: right only for rotations along the axes."""
    camera, pair, chord = rendered.camera, tracked.pair, tracked.pair.chord
    per_chord = by_closeness / np.maximum(pair.chord_length * radius, EPS)
    gradient = chord / half_chord[:, None]
    gradient[:, 2] = np.where(pair.centre[:, 2] > 0, f32(1), f32(-1))
    gradient = scaled(gradient, by_depth) - scaled(chord, per_chord)
    gradient = scaled(gradient, tracked.weight_gradient)
    row_sums = camera.axes.sum(0)
    np.add.at(sums.spheres["positions"], tracked.sphere, gradient * row_sums)
    np.add.at(sums.camera["eye"], tracked.sphere, -gradient * row_sums)
    along_x, along_y = _orthogonal_steps(tracked, rendered, gradient)
    outward = scaled(chord, (per_chord - by_depth / half_chord) * tracked.weight_gradient)
    middle = pair.centre - chord
    pixel = length(camera.step_x)
    stretch = outward[:, 0] * middle[:, 0] + outward[:, 1] * middle[:, 1]
    along_x = along_x + stretch[:, None] * (camera.step_x / (pixel * pixel))
    np.add.at(sums.camera["pixel_vec_x"], tracked.sphere, along_x)
    np.add.at(sums.camera["pixel_vec_y"], tracked.sphere, along_y)


def _orthogonal_steps(tracked: _Tracked, rendered: Rendered, gradient: Floats) -> tuple[Floats, Floats]:
    """Section 7: the original's derivative of the rotated centre with respect to the pixel vectors."""
    camera, found = rendered.camera, rendered.signatures
    step_x, step_y, normal = camera.step_x, camera.step_y, camera.axes[2]
    pixel = length(step_x)
    world = scaled(found.direction[tracked.sphere], found.distance[tracked.sphere] / pixel)
    turned = tracked.pair.centre
    depth = dot(turned, np.broadcast_to(normal, turned.shape))[:, None]
    area = np.maximum(length(np.cross(step_y, step_x).astype(f32)), EPS)
    results = []
    for axis, step, other in ((0, step_x, step_y), (1, step_y, step_x)):
        shear = world - (step * step.sum()) * world / (pixel * pixel)
        tilt = (depth * np.cross(other, normal) - np.cross(other, turned)) / area
        results.append(gradient[:, axis : axis + 1] * shear + gradient[:, 2:] * tilt)
    return results[0].astype(f32), results[1].astype(f32)


def _normalised(sums: _Sums, rendered: Rendered) -> Gradients:
    """Section 7.1: means over pixels; 7.2: the area of a sphere's rectangle weights its part of the camera gradient."""
    count, found = sums.count, rendered.signatures
    mean = np.where(count > 0, 1 / np.maximum(count, 1), 0)
    result = {name: (rows.T * mean).T.astype(f32) for name, rows in sums.spheres.items()}
    area = (found.box[:, 1] - found.box[:, 0]) * (found.box[:, 3] - found.box[:, 2])
    contributors = max(int(np.where(found.large, count > 0, count).sum()), 1)
    for name, rows in sums.camera.items():
        total = (rows * (area * 1e-3 * mean)[:, None]).sum(0) / contributors
        result[name] = total.astype(f32)
    return result
