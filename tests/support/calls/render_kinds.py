"""Hypothesis strategies for Renders: kinds of requests, complete except for cameras, and cameras for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import numpy as np

from lumigrad.kernels.gaussians import IMAGES, OUTPUTS
from lumigrad.kernels.spheres import OUTPUTS as SPHERE_OUTPUTS
from lumigrad.v1 import camera_pb2, gaussians_pb2, image_pb2, render_pb2, spheres_pb2
from support.calls.gaussian_calls import gaussian_cloud, inria_camera
from support.calls.raw_calls import Array, RawClient, opencv_camera, pulsar_camera, sphere_cloud
from support.gaussians.rotation import turned

SIZES = ((16, 12), (33, 17), (64, 48), (5, 1))
_DISTORTIONS = ((), (-0.12, 0.05, 0.004, -0.003), (-0.1, 0.05, 0.0, 0.0, 0.01), (0.1, 0, 0, 0, 0, 0.05, 0, 0))
_FLOATS = ("color", "alpha", "transmittance", "depth", "expected_depth", "inverse_depth", "weights")
_LEVELS = ("color", "alpha", "transmittance")
_HALVES = (image_pb2.IMAGE_FORMAT_FLOAT32, image_pb2.IMAGE_FORMAT_FLOAT16, image_pb2.IMAGE_FORMAT_BFLOAT16)
_RARELY = st.sampled_from((*(False,) * 9, True))
# Settings for Gaussians in front of the camera, at depths of 4 to 8; each is set in some requests.
_GAUSSIAN_SETTINGS: Mapping[str, st.SearchStrategy[Any]] = {
    "semantics": st.sampled_from((1, 2, 4)),
    "antialiased": st.booleans(),
    "eps2d": st.floats(0, 2, width=32),
    "near": st.floats(0.25, 6, width=32),
    "far": st.floats(6.5, 1000, width=32),
    "radius_clip": st.floats(0, 4, width=32),
    "alpha_min": st.floats(0.0625, 0.25, width=32),
    "alpha_max": st.floats(0.5, 0.875, width=32),
    "transmittance_min": st.floats(0.0625, 0.5, width=32),
    "pixel_center": st.sampled_from((0.0, 0.5)),
    "scale_modifier": st.floats(0.25, 2, width=32),
    "deterministic": st.booleans(),
    "precision": st.sampled_from((1, 2)),
    "transforms": st.just([gaussians_pb2.SliceTransform(begin=3, end=9, matrix=np.diag([1, -1, -1, 1]).ravel())]),
}
# Other image formations.
_RARE: tuple[dict[str, Any], ...] = (
    {"response": gaussians_pb2.RESPONSE_RAY},
    {"projection_method": gaussians_pb2.PROJECTION_METHOD_UNSCENTED},
    {"primitive": gaussians_pb2.PRIMITIVE_SURFEL},
)
_SPHERE_SETTINGS: Mapping[str, st.SearchStrategy[Any]] = {
    "semantics": st.sampled_from((1, 2)),
    "allowed_difference": st.floats(0, 0.25, width=32),
    "max_hits": st.integers(0, 3),
    "n_track": st.integers(0, 7),
    "background_depth": st.floats(0.0625, 0.5, width=32),
    "deterministic": st.booleans(),
}


@dataclass(frozen=True)
class StoredCloud:
    """A stored scene, with what its requests depend on."""

    scene_id: str
    is_spheres: bool
    channels: int
    # Degree of the spherical harmonics; None if the scene has colours.
    degree: int | None = None
    # Numbers of cameras that it takes.
    counts: tuple[int, ...] = (1, 2, 3)


def store_clouds(client: RawClient) -> list[StoredCloud]:
    """Stores one scene of each layout."""

    def put(cloud: Mapping[str, Array], *fields: Any) -> StoredCloud:
        return StoredCloud(client.put(cloud).scene.scene_id, *fields)

    return [
        put(gaussian_cloud(60, coefficients=4, seed=1), False, 3, 1),
        put(gaussian_cloud(60, coefficients=16, covariances=True, seed=2), False, 3, 3),
        put(gaussian_cloud(60, coefficients=0, channels=1, seed=3), False, 1),
        put(gaussian_cloud(60, coefficients=0, channels=4, seed=4), False, 4),
        put(gaussian_cloud(2, 30, coefficients=0, seed=5), False, 3, None, (2, 4)),
        put(gaussian_cloud(60, coefficients=0, views=2, seed=6), False, 3, None, (2,)),
        put(sphere_cloud(60, seed=7), True, 3),
        put(sphere_cloud(60, channels=5, seed=8), True, 5),
    ]


@dataclass(frozen=True)
class Kind:
    """Requests that differ only in their cameras.

    Attributes:
        request: one without cameras.
        size: width and height of the images.
        counts: numbers of cameras that it takes.
        camera: makes a camera of numbers drawn by a generator.
    """

    request: render_pb2.RenderRequest
    size: tuple[int, int]
    counts: tuple[int, ...]
    camera: Callable[[np.random.Generator, int, int], camera_pb2.Camera]

    def with_cameras(self, seed: int) -> render_pb2.RenderRequest:
        """A request with some cameras."""
        random = np.random.default_rng(seed)
        count = int(random.choice(self.counts))
        request = render_pb2.RenderRequest()
        request.CopyFrom(self.request)
        request.spec.cameras.extend(self.camera(random, *self.size) for _ in range(count))
        return request


def moved(request: render_pb2.RenderRequest, seed: int) -> render_pb2.RenderRequest:
    """The same request from other poses, if its cameras are OpenCV's."""
    random, other = np.random.default_rng(seed), render_pb2.RenderRequest()
    other.CopyFrom(request)
    for camera in other.spec.cameras:
        if camera.HasField("opencv"):
            model = camera.opencv
            model.rotation[:] = turned(*random.uniform(-0.1, 0.1, 3)).ravel().tolist()
            model.translation[:] = (np.array(model.translation) + random.uniform(-0.2, 0.2, 3)).tolist()
    return other


@st.composite
def kinds(draw: st.DrawFn, clouds: list[StoredCloud]) -> Kind:
    """A kind of requests for one of the stored scenes; most are valid."""
    cloud = draw(st.sampled_from(clouds))
    spec = render_pb2.RenderSpec()
    spec.scene_ref.scene_id = cloud.scene_id
    if draw(_RARELY):
        spec.scene_ref.version = 1
    if cloud.is_spheres:
        spec.spheres.CopyFrom(draw(_spheres(cloud)))
    else:
        spec.gaussians.CopyFrom(draw(_gaussians(cloud)))
    names = SPHERE_OUTPUTS if cloud.is_spheres else draw(st.sampled_from((IMAGES, OUTPUTS)))
    spec.outputs.extend(draw(st.lists(st.sampled_from(names), max_size=4, unique=True)))
    request = render_pb2.RenderRequest(spec=spec, retain=draw(_RARELY))
    for name in list(spec.outputs) or ["color"]:
        formats = _formats(name, cloud.channels)
        if formats and draw(st.booleans()):
            form = draw(st.sampled_from(formats))
            quality = draw(st.sampled_from((0, 60, 95))) if form == image_pb2.IMAGE_FORMAT_JPEG else 0
            request.formats.add(name=name, format=form, quality=quality)
    each = len(spec.gaussians.background) > cloud.channels
    return Kind(request, draw(st.sampled_from(SIZES)), (2,) if each else cloud.counts, draw(_cameras(cloud)))


def _formats(name: str, channels: int) -> list[int]:
    found = list(_HALVES) if name in _FLOATS else []
    if name in _LEVELS:
        found.append(image_pb2.IMAGE_FORMAT_UINT8)
    if name in _LEVELS and (name != "color" or channels in (1, 3, 4)):
        found.append(image_pb2.IMAGE_FORMAT_PNG)
    if name == "color" and channels == 3:
        found.append(image_pb2.IMAGE_FORMAT_JPEG)
    return found


def _chosen(draw: st.DrawFn, settings: Mapping[str, st.SearchStrategy[Any]]) -> dict[str, Any]:
    names = draw(st.lists(st.sampled_from(sorted(settings)), max_size=3, unique=True))
    return {name: draw(settings[name]) for name in names}


def _background(draw: st.DrawFn, channels: int) -> list[float]:
    count = draw(st.sampled_from((0, channels, channels, 2 * channels)))
    return draw(st.lists(st.floats(-0.5, 1.5, width=32), min_size=count, max_size=count))


@st.composite
def _gaussians(draw: st.DrawFn, cloud: StoredCloud) -> gaussians_pb2.GaussianSettings:
    values = _chosen(draw, _GAUSSIAN_SETTINGS)
    if cloud.degree is not None and draw(st.booleans()):
        values["sh_degree"] = draw(st.integers(0, cloud.degree))
    if draw(_RARELY):
        values.update(draw(st.sampled_from(_RARE)))
    return gaussians_pb2.GaussianSettings(background=_background(draw, cloud.channels), **values)


@st.composite
def _spheres(draw: st.DrawFn, cloud: StoredCloud) -> spheres_pb2.SphereSettings:
    values = _chosen(draw, _SPHERE_SETTINGS)
    background = _background(draw, cloud.channels)[: cloud.channels]
    gamma = draw(st.floats(0.015625, 0.5, width=32))
    return spheres_pb2.SphereSettings(gamma=gamma, min_depth=1.5, max_depth=20, background=background, **values)


@st.composite
def _cameras(draw: st.DrawFn, cloud: StoredCloud) -> Callable[[np.random.Generator, int, int], camera_pb2.Camera]:
    if draw(_RARELY):
        return _pulsar if cloud.is_spheres else _inria
    projection = 0 if cloud.is_spheres else draw(st.sampled_from((0, 0, 1, 2, 3)))
    is_pinhole = projection < camera_pb2.PROJECTION_ORTHOGRAPHIC and not cloud.is_spheres
    distortion = draw(st.sampled_from(_DISTORTIONS)) if is_pinhole else ()

    def camera(random: np.random.Generator, width: int, height: int) -> camera_pb2.Camera:
        made = opencv_camera(width, height, x=random.uniform(-0.3, 0.3))
        opencv = made.opencv
        opencv.projection, factor = projection, random.uniform(0.7, 1.3)
        if projection == camera_pb2.PROJECTION_ORTHOGRAPHIC:
            factor /= 6
        opencv.fx, opencv.fy = opencv.fx * factor, opencv.fy * factor * random.uniform(0.9, 1.1)
        opencv.cx += random.uniform(-2, 2)
        opencv.rotation[:] = turned(*random.uniform(-0.1, 0.1, 3)).ravel().tolist()
        opencv.translation[:] = (np.array(opencv.translation) + random.uniform(-0.2, 0.2, 3)).tolist()
        opencv.distortion.extend(distortion)
        return made

    return camera


def _pulsar(random: np.random.Generator, width: int, height: int) -> camera_pb2.Camera:
    return pulsar_camera(width, height, focal=random.uniform(0.7, 1.3))


def _inria(random: np.random.Generator, width: int, height: int) -> camera_pb2.Camera:
    made = inria_camera(random.uniform(-0.3, 0.3))
    made.width, made.height = width, height
    return made
