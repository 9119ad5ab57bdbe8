"""Pulsar's forward pass in numpy float32, sphere by sphere over its rectangle: the images `compat` must reproduce."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from support.spheres.case import SphereCase
from support.spheres.compat_math import EPS, LARGEST, Floats, f32, fast_exp, fast_ln
from support.spheres.compat_pairs import Pairs, pairs
from support.spheres.compat_setup import NativeCamera, Signatures, native_camera, signatures

# The CPU build draws when more than this number of candidates is loaded.
BLOCK = 64


@dataclass(frozen=True)
class Rendered:
    """A forward pass: its results, and the inputs of the backward pass."""

    image: Floats
    info: Floats
    hits: NDArray[np.int32]
    camera: NativeCamera
    signatures: Signatures


class _Film:
    """Section 5: the running state of every pixel."""

    def __init__(self, case: SphereCase, camera: NativeCamera) -> None:
        shape = (camera.height, camera.width)
        self.case, self.camera = case, camera
        self.gamma = f32(case.gamma)
        self.pad = np.minimum(f32(case.allowed_difference), f32(1) - EPS)
        with np.errstate(divide="ignore"):
            self.log_pad = fast_ln(self.pad / (f32(1) - self.pad))
        self.color = np.broadcast_to(case.background, (*shape, case.channels)).copy()
        self.weight = np.ones(shape, f32)
        self.maximum = np.full(shape, f32(case.background_depth) / self.gamma, f32)
        self.threshold = np.full(shape, LARGEST, f32)
        self.farthest = np.full(shape, f32(-1))
        self.hits = np.zeros(shape, np.int64)
        self.done = np.zeros(shape, np.bool_)
        self.loaded = np.zeros(shape, np.int64)
        self.block_near = np.zeros(shape, f32)
        self.ids = np.full((*shape, case.n_track), -1, np.int32)
        self.depths = np.full((*shape, case.n_track), LARGEST, f32)

    def draw(self, index: int, near: np.float32, box: NDArray[np.int64], found: Signatures) -> None:
        """Section 5.1 and 5.2 for the pixels of the sphere's box, and one more to the left and above."""
        left, top = self.camera.film
        x0, y0 = max(int(box[0]) - 1, left), max(int(box[2]) - 1, top)
        y, x = np.mgrid[y0 : int(box[3]), x0 : int(box[1])]
        at = np.s_[y0 - top : int(box[3]) - top, x0 - left : int(box[1]) - left]
        shape = x.shape
        pair = pairs(
            self.camera, np.broadcast_to(found.direction[index], (*shape, 3)),
            np.broadcast_to(found.distance[index], shape), np.broadcast_to(self.case.radii[index], shape), x, y,
        )  # fmt: skip
        active = ~self.done[at]
        hit = active & pair.hit
        self._blend(index, at, hit, pair)
        self._track(index, at, hit, pair.depth)
        self.farthest[at] = np.where(hit, np.maximum(self.farthest[at], near), self.farthest[at])
        self.hits[at] += hit
        self._stop(at, active, near)

    def _blend(self, index: int, at: tuple[slice, slice], hit: NDArray[np.bool_], pair: Pairs) -> None:
        """The online softmax; the background weighs exactly 1 at the start."""
        opacities = self.case.opacities
        opacity = f32(1) if opacities is None else opacities[index]
        exponent = (f32(1) - pair.normalized_depth) / self.gamma * opacity
        old = self.maximum[at]
        new = np.maximum(old, exponent)
        share = pair.closeness * fast_exp(exponent - new) * opacity
        rescale = np.where(new == old, f32(1), fast_exp(old - new))
        weight = self.weight[at] * rescale + share
        color = share[..., None] * self.case.colors[index] + self.color[at] * rescale[..., None]
        threshold = f32(1) - ((fast_ln(weight + EPS) + self.log_pad) + new) * self.gamma
        threshold = threshold * (self.camera.max_depth - self.camera.min_depth) + self.camera.min_depth
        self.weight[at] = np.where(hit, weight, self.weight[at])
        self.color[at] = np.where(hit[..., None], color, self.color[at])
        self.threshold[at] = np.where(hit, threshold, self.threshold[at])
        self.maximum[at] = np.where(hit, new, old)

    def _track(self, index: int, at: tuple[slice, slice], hit: NDArray[np.bool_], depth: Floats) -> None:
        """Section 5.3: insertion in front of entries that are as deep or deeper; the last one is dropped."""
        depths, ids = self.depths[at], self.ids[at]
        slot = (depths < depth[..., None]).sum(-1)[..., None]
        place = np.arange(self.case.n_track)
        for entries, value in ((depths, depth[..., None]), (ids, np.int32(index))):
            shifted = np.concatenate([entries[..., :1], entries[..., :-1]], -1)
            inserted = np.where(place < slot, entries, np.where(place == slot, value, shifted))
            entries[...] = np.where(hit[..., None], inserted, entries)

    def _stop(self, at: tuple[slice, slice], active: NDArray[np.bool_], near: np.float32) -> None:
        """Section 5.2: whether to stop is decided only when a block of candidates is full."""
        self.loaded[at] += active
        block_near = np.where(active, np.maximum(self.block_near[at], near), self.block_near[at])
        full = active & (self.loaded[at] > BLOCK)
        enough = (self.pad > 0) & (block_near > self.threshold[at])
        if self.case.max_hits:
            enough |= self.hits[at] >= self.case.max_hits
        self.done[at] |= full & enough
        self.loaded[at] = np.where(full, 0, self.loaded[at])
        self.block_near[at] = np.where(full, f32(0), block_near)

    def info(self) -> Floats:
        """Section 6."""
        result = np.empty((*self.weight.shape, 3 + 2 * self.case.n_track), f32)
        result[..., 0], result[..., 1], result[..., 2] = self.maximum, self.weight, self.farthest
        result.view(np.int32)[..., 3::2] = self.ids
        result[..., 4::2] = np.where(self.depths == LARGEST, f32(-1), self.depths)
        return result


def render(case: SphereCase) -> Rendered:
    """Sections 4 to 6."""
    camera = native_camera(case)
    found = signatures(camera, case.positions, case.radii)
    film = _Film(case, camera)
    for index in np.argsort(found.near, kind="stable"):
        if not found.visible[index]:
            break
        film.draw(int(index), found.near[index], found.box[index], found)
    image = film.color * (f32(1) / np.maximum(film.weight, EPS))[..., None]
    return Rendered(image, film.info(), film.hits.astype(np.int32), camera, found)
