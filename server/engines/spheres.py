"""The engine of spheres: checks scenes and requests, and runs the kernels."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import torch

from lumigrad.kernels import spheres
from lumigrad.kernels.spheres import OUTPUTS, Camera, Settings
from lumigrad.kernels.steps import Steps
from lumigrad.server.core.limits import Limits, arguments_of, check_finite, known, names_of, require
from lumigrad.server.engines.base import RenderEngine
from lumigrad.server.engines.content import Rules, Shapes, Tensors, check_shape
from lumigrad.server.engines.requests import (
    Plan,
    check_cameras,
    check_model,
    check_pose,
    checked_outputs,
    fill_of,
    given_settings,
    projection_of,
    rows,
)
from lumigrad.v1 import camera_pb2, render_pb2, spheres_pb2

KIND = "spheres"


class SphereRules(Rules):
    """The rules for scenes of spheres."""

    name = engine = KIND
    alternatives: Mapping[str, Collection[str]] = dict.fromkeys(("positions", "colors", "radii", "opacities"), ())

    def check_shapes(self, shapes: Shapes, limits: Limits, field: str) -> None:
        """Check the shapes in the header; `field` is the path of the cloud in the request."""
        for name in ("positions", "colors", "radii"):
            require(name in shapes, f"{field}.{name}", "a tensor", "none")
        positions, colors = shapes["positions"], list(shapes["colors"])
        count = positions[0] if positions else 0
        limit = f"at most {limits.primitives} spheres"
        require(count <= limits.primitives, f"{field}.positions", limit, count)
        channels = colors[1] if len(colors) == 2 else 0
        check_shape(positions, [count, 3], f"{field}.positions")
        is_fit = colors == [count, channels] and channels >= 1
        require(is_fit, f"{field}.colors", f"shape [{count}, K] with K >= 1", colors)
        require(channels <= limits.channels, f"{field}.colors", f"at most {limits.channels} channels", channels)
        for name in ("radii", "opacities"):
            if name in shapes:
                check_shape(shapes[name], [count], f"{field}.{name}")

    def check_values(self, tensors: Tensors, field: str) -> None:
        """Check that values are finite, radii > 0, opacities in [0, 1]."""
        with arguments_of(field):
            spheres.check_values(tensors["positions"], tensors["colors"], tensors["radii"], tensors.get("opacities"))

    def count(self, shapes: Shapes) -> int:
        """Return the number of spheres."""
        return shapes["radii"][0]


_SEMANTICS = names_of(spheres_pb2.Semantics)
# The default softness, rounded to float32 like the values of requests.
_GAMMA = float(np.float32(1e-2))
_CAMERA_VALUES = 16
# Workspace bytes per sphere. Measured on the CPU: 126 for forward and 172 for backward, which may reuse forward's.
_FORWARD_BYTES = 145
_BACKWARD_BYTES = 120
# Bytes on CUDA, per sphere of each view: measured 131 to 142; and of its backward pass, besides a row of sums of 5
# values and the colour.
_CUDA_FORWARD_BYTES = 140
_CUDA_BACKWARD_BYTES = 32
# Bytes per sphere for the box around all spheres, if a request does not give their depth range.
_RANGE_BYTES = 24
# Bytes per pixel that `exact` keeps for backward besides the outputs.
_EXACT_STATE_BYTES = 16


@dataclass(frozen=True, kw_only=True)
class SpherePlan(Plan):
    """A checked call of the sphere kernels, without the scene."""

    cameras: Sequence[Camera]
    settings: Settings
    # Empty for ones.
    background: Sequence[float]

    def forward_bytes(self, outputs: Collection[str], *, retain: bool, device: torch.device) -> int:
        """Estimate the bytes of a forward pass. Views share a workspace on the CPU; CUDA renders them at once."""
        images, pixels = {*outputs}, prod(self.output_shapes["hits"])
        if device.type == "cpu":
            size = _FORWARD_BYTES * self.count + pixels // self.views
        else:
            size = _CUDA_FORWARD_BYTES * self.count * self.views + pixels
        if self.settings.max_depth == 0.0:
            size += _RANGE_BYTES * self.count
        if retain and self.settings.exact:
            images |= {"color", "sphere_ids"} if "depth" in outputs else {"color"}
            size += _EXACT_STATE_BYTES * pixels
        elif retain:
            images |= {"color", "info"}
        return size + self.image_bytes(images)

    def background_on(self, device: torch.device) -> torch.Tensor | None:
        """Return the background, [K]; None for ones."""
        return torch.tensor(self.background, dtype=torch.float32, device=device) if self.background else None

    def backward_bytes(self, wanted: Collection[str], device: torch.device) -> int:
        """Estimate the bytes of a backward pass, which adds up one view's gradients, or on CUDA rows of sums."""
        gradients = 4 * (self.count + sum(self.gradient_sizes[name] for name in wanted))
        if device.type == "cpu":
            return _BACKWARD_BYTES * self.count + gradients * (2 if self.views > 1 else 1)
        rows = _CUDA_BACKWARD_BYTES * self.count + 4 * self.gradient_sizes["colors"]
        # Each tile of 256 pixels has some sums in float64.
        return rows * self.views + prod(self.output_shapes["hits"]) + gradients


def sphere_plan(spec: render_pb2.RenderSpec, shapes: Shapes, limits: Limits, field: str) -> SpherePlan:
    """Check a request for spheres of these shapes; `field` is the spec's path. Raises InvalidArgumentError."""
    check_cameras(spec.cameras, limits, f"{field}.cameras")
    outputs = checked_outputs(spec, OUTPUTS, field)
    cameras = [_camera(camera, f"{field}.cameras[{index}]") for index, camera in enumerate(spec.cameras)]
    settings = _settings(spec.spheres, f"{field}.spheres")
    # A depth range without a far end depends on the poses of all cameras of a call.
    is_open = settings.max_depth == 0.0
    count, channels = shapes["colors"]
    background = tuple(spec.spheres.background)
    limit = f"{channels} values, one per channel of the scene, or none"
    require(len(background) in (0, channels), f"{field}.spheres.background", limit, len(background))
    check_finite(background, f"{field}.spheres.background")
    views = len(cameras)
    message = spec.spheres.SerializeToString(deterministic=True)
    output_shapes = _output_shapes([views, cameras[0].height, cameras[0].width], channels, settings.n_track)
    sizes = {"positions": 3 * count, "colors": channels * count, "radii": count, "opacities": count}
    return SpherePlan(
        outputs=outputs,
        output_shapes=output_shapes,
        upstream_shapes={name: output_shapes[name] for name in ("color", "alpha", "depth")},
        gradient_sizes={**sizes, "cameras": _CAMERA_VALUES * views, "background": channels, "gamma": 1},
        default_wanted=("positions", "colors", "radii"),
        row_gradients=tuple(sizes),
        count=count,
        views=views,
        # The start of the depth range may depend on all cameras of a call.
        kind=None
        if is_open
        else (message, outputs, cameras[0].width, cameras[0].height, max(camera.auto_min_depth for camera in cameras)),
        fill=fill_of(spec.cameras, limits),
        cameras=cameras,
        settings=settings,
        background=background,
    )


def _output_shapes(image: list[int], channels: int, tracked: int) -> Shapes:
    return {
        "color": [*image, channels],
        "alpha": image,
        "depth": image,
        "info": [*image, 3 + 2 * tracked],
        "sphere_ids": [*image, tracked],
        "weights": [*image, tracked],
        "hits": image,
    }


def _camera(message: camera_pb2.Camera, field: str) -> Camera:
    model = check_model(message, ("pulsar", "opencv"), field)
    if model == "opencv":
        _check_camera(message.opencv, f"{field}.opencv")
    # Unknown fields may have any size, and the cache would keep them beyond the call.
    message.DiscardUnknownFields()
    with arguments_of(f"{field}.{model}", {"width": f"{field}.width", "height": f"{field}.height"}):
        return _known_camera(message.SerializeToString(deterministic=True))


def _check_camera(message: camera_pb2.OpenCVCamera, field: str) -> None:
    check_pose(message, field)
    projection = projection_of(message, field)
    require(projection == "pinhole", f"{field}.projection", "pinhole, the one projection of spheres", projection)
    distortion = len(message.distortion)
    require(
        distortion == 0, f"{field}.distortion", "no values: spheres do not support distortion", f"{distortion} values"
    )


@lru_cache(maxsize=4096)
def _known_camera(serialized: bytes) -> Camera:
    """Create a camera; cached, because creation is slow and trainers repeat their views."""
    message = camera_pb2.Camera.FromString(serialized)
    width, height = message.width, message.height
    if message.HasField("pulsar"):
        pulsar = message.pulsar
        return Camera.pulsar(
            tuple(pulsar.parameters),
            width,
            height,
            orthogonal=pulsar.orthogonal,
            right_handed=pulsar.right_handed,
            first_r_then_t=pulsar.first_r_then_t,
        )
    opencv = message.opencv
    rotation, translation = rows(opencv.rotation, 3), list(opencv.translation)
    return Camera.opencv(opencv.fx, opencv.fy, opencv.cx, opencv.cy, rotation, translation, width, height)


def _settings(message: spheres_pb2.SphereSettings, field: str) -> Settings:
    semantics = known(_SEMANTICS, message.semantics, f"{field}.semantics")
    # 0 tracked spheres stand for the kernels' default.
    tracked = {"n_track": message.n_track} if message.n_track else {}
    with arguments_of(field):
        return Settings(
            gamma=message.gamma or _GAMMA,
            max_depth=message.max_depth,
            min_depth=message.min_depth,
            semantics=semantics,
            max_hits=message.max_hits,
            deterministic=message.deterministic,
            **tracked,
            **given_settings(message),
        )


def _forward(plan: SpherePlan, inputs: Tensors, outputs: Sequence[str], **options: Any) -> Steps[spheres.Forward]:
    return spheres.forward_steps(
        inputs["positions"],
        inputs["colors"],
        inputs["radii"],
        plan.cameras,
        plan.settings,
        opacities=inputs.get("opacities"),
        background=plan.background_on(inputs["positions"].device),
        outputs=outputs,
        **options,
    )


SPHERES = RenderEngine(KIND, _forward, spheres.backward_steps, levels=("color",), plan=sphere_plan)
