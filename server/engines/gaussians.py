"""The engine of Gaussians: checks requests and runs the kernels."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isqrt, prod
from typing import Any

import numpy as np
import torch

from lumigrad.kernels import gaussians
from lumigrad.kernels.gaussians import (
    CELL,
    ON_RAYS,
    ON_SURFELS,
    OUTPUTS,
    SCENE_GRADIENTS,
    Camera,
    Settings,
    Transform,
    UnscentedTransform,
)
from lumigrad.kernels.steps import Steps
from lumigrad.protos.tensors import extent
from lumigrad.server.core.limits import Limits, arguments_of, check_finite, known, names_of, require
from lumigrad.server.engines.base import RenderEngine
from lumigrad.server.engines.cameras import (
    check_projection,
    check_response,
    gaussian_cameras,
    outline,
    projection_method,
)
from lumigrad.server.engines.content import Rules, Shapes, Tensors, check_shape, shapes_of
from lumigrad.server.engines.rays import RAY_VALUES, given_rays, stacked
from lumigrad.server.engines.requests import Plan, check_cameras, check_length, checked_outputs, fill_of, given_settings
from lumigrad.server.engines.surfels import (
    NORMAL_BACKWARD_BYTES,
    NORMAL_BYTES,
    SURFEL_BACKWARD_BYTES,
    SURFEL_VIEW_BYTES,
    WITHOUT,
    check_surfels,
)
from lumigrad.v1 import gaussians_pb2, render_pb2, tensor_pb2

KIND = "gaussians"
_COEFFICIENTS = (1, 4, 9, 16, 25)
# Settings that choose among the levels of a scene.
OF_LEVELS = ("max_error_px", "max_gaussians", "wait")


@dataclass(frozen=True)
class Layout:
    """The sizes of a cloud.

    Attributes:
        lead: [N], or [S, N] for S stacked scenes.
        channels: D, the channels of colour.
        coefficients: Spherical harmonics per channel; 0 if there are colours instead.
        color_views: The number of cameras with colours of their own; 0 if all share the same colours.
    """

    lead: Sequence[int]
    channels: int
    coefficients: int
    color_views: int

    @staticmethod
    def of(shapes: Shapes) -> Layout:
        """Create the layout of checked shapes."""
        lead = list(shapes["means"][:-1])
        if "sh" in shapes:
            return Layout(lead, shapes["sh"][-1], shapes["sh"][-2], 0)
        colors = list(shapes["colors"])
        return Layout(lead, colors[-1], 0, prod(colors[:-2]) if len(colors) == len(lead) + 2 else 0)

    @property
    def scenes(self) -> int:
        """S, the number of scenes."""
        return prod(self.lead[:-1])

    @property
    def each(self) -> int:
        """N, the Gaussians of each scene."""
        return self.lead[-1]


class GaussianRules(Rules):
    """The rules for scenes of Gaussians."""

    name = engine = KIND
    alternatives: Mapping[str, Collection[str]] = {
        "means": (),
        "quats": ("covariances",),
        "scales": ("covariances",),
        "covariances": ("quats", "scales"),
        "opacities": (),
        "sh": ("colors",),
        "colors": ("sh",),
    }

    def check_shapes(self, shapes: Shapes, limits: Limits, field: str) -> None:
        """Check the shapes in the header; `field` is the path of the cloud in the request."""
        for name in ("means", "opacities"):
            require(name in shapes, f"{field}.{name}", "a tensor", "none")
        means = list(shapes["means"])
        is_fit = len(means) in (2, 3) and means[-1] == 3 and means[0] >= len(means) - 2
        require(is_fit, f"{field}.means", "shape [N, 3], or [S, N, 3] with S >= 1", means)
        lead = means[:-1]
        limit = f"at most {limits.primitives} Gaussians in all (scenes with levels have more)"
        require(extent(lead) <= limits.primitives, f"{field}.means", limit, extent(lead))
        check_shape(shapes["opacities"], lead, f"{field}.opacities")
        _check_extent(shapes, lead, field)
        _check_color(shapes, lead, field)
        channels, name = Layout.of(shapes).channels, "sh" if "sh" in shapes else "colors"
        require(channels <= limits.channels, f"{field}.{name}", f"at most {limits.channels} channels", channels)

    def check_values(self, tensors: Tensors, field: str) -> None:
        """Check that values are finite, scales >= 0, opacities in [0, 1]."""
        with arguments_of(field):
            gaussians.check_values(gaussians.Gaussians(**tensors))

    def count(self, shapes: Shapes) -> int:
        """Return the number of Gaussians of all scenes."""
        return prod(Layout.of(shapes).lead)


def _check_extent(shapes: Shapes, lead: list[int], field: str) -> None:
    for name, length in (("quats", 4), ("scales", 3)):
        if "covariances" in shapes:
            require(name not in shapes, f"{field}.{name}", "none beside covariances", "a tensor")
        else:
            require(name in shapes, f"{field}.{name}", "a tensor, or covariances instead of quats and scales", "none")
            check_shape(shapes[name], [*lead, length], f"{field}.{name}")
    if "covariances" in shapes:
        check_shape(shapes["covariances"], [*lead, 6], f"{field}.covariances")


def _check_color(shapes: Shapes, lead: list[int], field: str) -> None:
    given = [name for name in ("sh", "colors") if name in shapes]
    require(len(given) == 1, f"{field}.colors", "either sh or colors", " and ".join(given) or "neither")
    shape, known = list(shapes[given[0]]), ", ".join(map(str, lead))
    if "sh" in shapes:
        is_fit = len(shape) == len(lead) + 2 and shape[:-2] == lead and shape[-2] in _COEFFICIENTS and shape[-1] >= 1
        require(is_fit, f"{field}.sh", f"shape [{known}, K, D] with K = 1, 4, 9, 16 or 25 and D >= 1", shape)
        return
    views = [*lead[:-1], shape[len(lead) - 1] if len(shape) == len(lead) + 2 else 0, lead[-1]]
    is_fit = shape[:-1] in (lead, views) and shape[-1] >= 1
    per_view = ", ".join(map(str, [*lead[:-1], "C", lead[-1]]))
    require(is_fit, f"{field}.colors", f"shape [{known}, D] or, for C cameras, [{per_view}, D], with D >= 1", shape)


_SEMANTICS = names_of(gaussians_pb2.GaussianSemantics)
_DEPTH_ORDERS = names_of(gaussians_pb2.DepthOrder)
_TILE_BOUNDS = names_of(gaussians_pb2.TileBounds)
_RESPONSES = names_of(gaussians_pb2.Response)
_PRIMITIVES = names_of(gaussians_pb2.Primitive)
_UPSTREAM = ("color", "alpha", "transmittance", "depth", "expected_depth", "inverse_depth")
# The most values: two matrices and a position for Inria's cameras, or intrinsics and, at both ends, pose, rotation and
# translation for sensors.
_CAMERA_VALUES = 40
# The most values: an f-theta lens and a windshield of the largest order, with inverses.
_LENS_VALUES = 99
# Bytes per Gaussian: workspace, one view, and one view's backward pass. Measured: 30 to 40, 105 and 90 on the CPU, if
# all are visible; 0, 113 and 46 on CUDA. On the CPU, views with few visible Gaussians take less, which is not known
# when a call is admitted; a retained pass is counted with its actual size.
_WORKSPACE_BYTES = 25
_VIEW_BYTES = 110
_BACKWARD_BYTES = 90
# Bytes that rays add per Gaussian of a view and of a backward pass, and per pixel of a view. Measured: 66 to 106, 75
# to 80, and 20 from one origin, 36 from several.
_RAY_VIEW_BYTES = 105
_RAY_BACKWARD_BYTES = 75
_RAY_PIXEL_BYTES = 36
# The gradients of each return's two angles.
_LIDAR_PIXEL_BYTES = 8
# Bytes on CUDA instead: longer rows of sums in each view; and the gradients of rays, per pixel of a view.
_CUDA_RAY_ROW_BYTES = 32
_CUDA_RAY_GRADIENT_BYTES = 24
# Bytes of the sums for the pose of a view and a slice; there may be slices between those of the transforms.
_POSE_BYTES = 168
# Bytes for moving slices: on the CPU, per slice and row of tiles of a view, and per slice and thread; on CUDA, per
# Gaussian of a view.
_MOVING_ROW_BYTES = 72
_MOVING_THREAD_BYTES = 640
_CUDA_MOVING_BYTES = 64
_TILE_HEIGHT = 16
_THROUGH_RAYS = {"cameras", "transforms", "lenses", "rays"}
# Outputs that are retained for the backward passes of other outputs.
_SOURCES = {
    **dict.fromkeys(("expected_depth", "median_depth", "distortion", "surface_normals"), "depth"),
    "expected_hit_distance": "hit_distance",
}


@dataclass(frozen=True, kw_only=True)
class GaussianPlan(Plan):
    """A checked call of the Gaussian kernels, without the scene."""

    cameras: Sequence[Camera]
    settings: Settings
    transforms: Sequence[Transform]
    # D or C * D values; empty for zeros.
    background: Sequence[float]
    background_shape: Sequence[int]
    # Given rays by their paths below the spec, whose path is `field`; empty for the rays of the lenses.
    rays: Mapping[str, tensor_pb2.Tensor]
    field: str

    @property
    def request_tensors(self) -> Mapping[str, tensor_pb2.Tensor]:
        """The rays."""
        return self.rays

    def forward_bytes(self, outputs: Collection[str], *, retain: bool, device: torch.device) -> int:
        """Estimate the bytes of a forward pass: all views at once on CUDA, and each view's forward state."""
        images = {*outputs}
        if retain:
            images |= {"color", "transmittance", *(_SOURCES[name] for name in images & _SOURCES.keys())}
        kept = self.views if retain or device.type != "cpu" else 1
        views = (self._each * self._view_bytes + self._ray_bytes) * kept
        given = RAY_VALUES * 4 * self._pixels * self.views if self.rays else 0
        normals = NORMAL_BYTES * self._surface_pixels
        return self._each * _WORKSPACE_BYTES + views + given + normals + self.image_bytes(images)

    def backward_bytes(self, wanted: Collection[str], device: torch.device) -> int:
        """Estimate the bytes of a backward pass: sums over each view's pixels, then the gradients."""
        gradients = 4 * (self.count + sum(self.gradient_sizes[name] for name in wanted))
        if "lenses" in wanted and self.cameras[0].lidar is not None:
            gradients += _LIDAR_PIXEL_BYTES * self._pixels * self.views
        along = self._ray_backward_bytes(wanted, device) if self._is_on_rays else 0
        each = _BACKWARD_BYTES + (SURFEL_BACKWARD_BYTES if self.settings.surfels else 0)
        normals = NORMAL_BACKWARD_BYTES * self._surface_pixels
        poses = (
            self.views * (2 * len(self.transforms) + 1) * _POSE_BYTES if {"cameras", "transforms"} & {*wanted} else 0
        )
        return self._each * self.views * each + along + normals + poses + gradients

    def _ray_backward_bytes(self, wanted: Collection[str], device: torch.device) -> int:
        """Return the bytes that rays add to a backward pass."""
        moving = self._moving_bytes(device) if {"cameras", "transforms"} & {*wanted} else 0
        if device.type == "cpu":
            return self._each * _RAY_BACKWARD_BYTES + moving
        pixels = self._pixels * _CUDA_RAY_GRADIENT_BYTES if _THROUGH_RAYS & {*wanted} else 0
        return self.views * (self._each * _CUDA_RAY_ROW_BYTES + pixels) + moving

    def _moving_bytes(self, device: torch.device) -> int:
        """Return the bytes of the sums for moving slices, in a backward pass along rays."""
        moving = sum(transform.matrix_end is not None for transform in self.transforms)
        if moving == 0:
            return 0
        if device.type != "cpu":
            return self.views * self._each * _CUDA_MOVING_BYTES
        rows = -(-self.cameras[0].height // _TILE_HEIGHT) + 1
        return moving * (self.views * rows * _MOVING_ROW_BYTES + (os.cpu_count() or 1) * _MOVING_THREAD_BYTES)

    def background_on(self, device: torch.device) -> torch.Tensor | None:
        """Return the background as the kernels take it."""
        if not self.background:
            return None
        return torch.tensor(self.background, dtype=torch.float32).reshape(*self.background_shape).to(device)

    @property
    def _is_on_rays(self) -> bool:
        return self.settings.response == "ray"

    @property
    def _pixels(self) -> int:
        """The number of pixels of one view."""
        return self.cameras[0].width * self.cameras[0].height

    @property
    def _ray_bytes(self) -> int:
        """Bytes that rays add to a view."""
        return self._each * _RAY_VIEW_BYTES + self._pixels * _RAY_PIXEL_BYTES if self._is_on_rays else 0

    @property
    def _each(self) -> int:
        """The number of Gaussians of one scene."""
        return self.output_shapes["depths"][1]

    @property
    def _view_bytes(self) -> int:
        """Bytes of a view per Gaussian, without channels beyond colour."""
        surfel = SURFEL_VIEW_BYTES if self.settings.surfels else 0
        return _VIEW_BYTES + surfel + 5 * max(0, self.output_shapes["color"][-1] - 3)

    @property
    def _surface_pixels(self) -> int:
        """The number of pixels, over all views, with normals of surfaces."""
        return self._pixels * self.views if "surface_normals" in self.outputs else 0


def gaussian_plan(spec: render_pb2.RenderSpec, shapes: Shapes, limits: Limits, field: str) -> GaussianPlan:
    """Check a request for Gaussians of these shapes; `field` is the spec's path. Raises InvalidArgumentError."""
    layout = Layout.of(shapes)
    check_cameras(spec.cameras, limits, f"{field}.cameras")
    _check_views(len(spec.cameras), layout, f"{field}.cameras")
    message, where = spec.gaussians, f"{field}.gaussians"
    if not message.response and spec.cameras[0].sensor.HasField("lidar"):
        message.response = gaussians_pb2.RESPONSE_RAY
    on_rays = known(_RESPONSES, message.response, f"{where}.response") == "ray"
    surfels = message.primitive == gaussians_pb2.PRIMITIVE_SURFEL
    names, differentiable = _output_names(surfels=surfels, on_rays=on_rays)
    among = "" if surfels or on_rays else f" (with RESPONSE_RAY also {', '.join(ON_RAYS)})"
    outputs = checked_outputs(spec, names, field, among=among)
    cameras = gaussian_cameras(spec, field)
    has_rays = any(camera.sensor.HasField("rays") for camera in spec.cameras)
    rays = given_rays(spec, limits, field) if has_rays else {}
    background = _background_shape(message.background, len(cameras), layout.channels, f"{where}.background")
    transforms = _transforms(message.transforms, cameras, layout.each, f"{where}.transforms")
    method = projection_method(spec) if cameras[0].is_sensor else Settings.projection_method
    for name in OF_LEVELS:
        require(not message.HasField(name), f"{where}.{name}", "a scene with levels", "one without")
    settings = _settings(message, method, layout, where)
    if surfels:
        check_surfels(spec, cameras, settings, shapes, field)
    else:
        check_projection(cameras[0], settings, shapes, where)
    check_response(cameras, settings, has_rays, field)
    output_shapes = _output_shapes(cameras, layout)
    tensors = {name: prod(shapes[name]) for name in SCENE_GRADIENTS if name in shapes}
    gradient_sizes = {**tensors, "background": prod(background), **_view_gradient_sizes(cameras, transforms)}
    if rays:
        gradient_sizes["rays"] = RAY_VALUES * prod(output_shapes["alpha"])
    if not on_rays:
        gradient_sizes |= dict.fromkeys(("means2d", "means2d_abs"), 2 * len(cameras) * layout.each)
    # Properties that batched calls must share besides the settings.
    alike = cameras[0].width, cameras[0].height, outline(cameras[0])
    # Whether the call can be batched with others.
    is_alike = layout.scenes == 1 and not layout.color_views and len(background) == 1 and not rays
    return GaussianPlan(
        outputs=outputs,
        output_shapes=output_shapes,
        upstream_shapes={name: output_shapes[name] for name in differentiable},
        gradient_sizes=gradient_sizes,
        default_wanted=tuple(tensors),
        row_gradients=[name for name in tensors if not (name == "colors" and layout.color_views)],
        count=prod(layout.lead),
        views=len(cameras),
        kind=(message.SerializeToString(deterministic=True), outputs, *alike) if is_alike else None,
        fill=fill_of(spec.cameras, limits),
        cameras=cameras,
        settings=settings,
        transforms=transforms,
        background=tuple(message.background),
        background_shape=background,
        rays=rays,
        field=field,
    )


def _output_names(*, surfels: bool, on_rays: bool) -> tuple[list[str], list[str]]:
    """Return the names of all outputs, and of those with gradients."""
    more = ON_SURFELS if surfels else ON_RAYS if on_rays else ()
    names = [name for name in (*OUTPUTS, *more) if not (surfels and name in WITHOUT)]
    differentiable = {*_UPSTREAM, *more, *(() if on_rays else ("means2d",))}
    return names, [name for name in names if name in differentiable]


def _view_gradient_sizes(cameras: Sequence[Camera], transforms: Sequence[Transform]) -> dict[str, int]:
    """Return the numbers of values of gradients of cameras, lenses and transforms."""
    sizes = {"cameras": _CAMERA_VALUES * len(cameras)}
    if cameras[0].is_sensor:
        lidar = cameras[0].lidar
        sizes["lenses"] = len(cameras) * (_LENS_VALUES if lidar is None else len(lidar.table()))
    if transforms:
        is_moving = any(transform.matrix_end is not None for transform in transforms)
        sizes["transforms"] = 16 * len(transforms) * (2 if is_moving else 1)
    return sizes


def _check_views(views: int, layout: Layout, field: str) -> None:
    if layout.color_views:
        limit = f"{layout.color_views} cameras, as many as the scene's colours are for"
        require(views == layout.color_views, field, limit, views)
    limit = f"as many cameras for each of the scene's {layout.scenes} scenes"
    require(views % layout.scenes == 0, field, limit, views)


def _output_shapes(cameras: Sequence[Camera], layout: Layout) -> Shapes:
    views, each = len(cameras), layout.each
    image = [views, cameras[0].height, cameras[0].width]
    return {
        "color": [*image, layout.channels],
        **{name: image for name in ("alpha", "transmittance", "depth", "expected_depth", "inverse_depth")},
        **{name: image for name in ("hit_distance", "expected_hit_distance")},
        **{name: image for name in ("median_depth", "distortion")},
        **{name: [*image, 3] for name in ("normals", "surface_normals")},
        "contributors": image,
        "ids": image,
        "radii": [views, each, 2],
        "means2d": [views, each, 2],
        "depths": [views, each],
        "conics": [views, each, 3],
        "projected_opacities": [views, each],
        "visited": [views, each],
        "closers": [views, -(-cameras[0].height // CELL), -(-cameras[0].width // CELL)],
    }


def _background_shape(values: Sequence[float], views: int, channels: int, field: str) -> list[int]:
    limit = f"{channels} values, one per channel of the scene, or as many for each camera, or none"
    require(len(values) in (0, channels, views * channels), field, limit, len(values))
    check_finite(values, field)
    return [views, channels] if len(values) > channels else [channels]


def _transforms(
    messages: Sequence[gaussians_pb2.SliceTransform], cameras: Sequence[Camera], count: int, field: str
) -> list[Transform]:
    transforms = []
    for index, message in enumerate(messages):
        where = f"{field}[{index}]"
        check_length(message.matrix, 16, f"{where}.matrix")
        if message.matrix_end:
            check_length(message.matrix_end, 16, f"{where}.matrix_end")
        require(message.end <= count, f"{where}.end", f"at most {count}, the Gaussians of a scene", message.end)
        with arguments_of(field, {"transforms": where}):
            end = np.reshape(message.matrix_end, (4, 4)) if message.matrix_end else None
            transforms.append(Transform(message.begin, message.end, np.reshape(message.matrix, (4, 4)), end))
    ordered = sorted(transforms, key=lambda transform: transform.begin)
    for before, after in pairwise(ordered):
        found = f"[{before.begin}, {before.end}) and [{after.begin}, {after.end})"
        require(before.end <= after.begin, field, "slices that do not overlap", found)
    projected = bool(transforms) and any(camera.projected for camera in cameras)
    require(not projected, field, "none with Inria's cameras", len(transforms))
    moving = sum(transform.matrix_end is not None for transform in transforms)
    is_fit = moving == 0 or all(camera.is_rolling for camera in cameras)
    require(is_fit, field, "no matrix_end unless all cameras have a rolling shutter", moving)
    return transforms


def _settings(message: gaussians_pb2.GaussianSettings, method: str, layout: Layout, field: str) -> Settings:
    semantics = known(_SEMANTICS, message.semantics, f"{field}.semantics")
    if message.HasField("sh_degree"):
        stored = isqrt(layout.coefficients) - 1
        limit = f"at most {stored}, the degree stored" if stored >= 0 else "no degree for colours"
        require(message.sh_degree <= stored, f"{field}.sh_degree", limit, message.sh_degree)
    depth_order = known(_DEPTH_ORDERS, message.depth_order, f"{field}.depth_order")
    tile_bounds = known(_TILE_BOUNDS, message.tile_bounds, f"{field}.tile_bounds")
    sigma_points = message.unscented.DESCRIPTOR.fields_by_name
    with arguments_of(field, {f"unscented.{name}": f"{field}.unscented.{name}" for name in sigma_points}):
        unscented = UnscentedTransform(require_all=message.unscented.require_all, **given_settings(message.unscented))
        return Settings(
            semantics=semantics,
            antialiased=message.antialiased,
            deterministic=message.deterministic,
            depth_order=depth_order if message.depth_order else None,
            tile_bounds=tile_bounds,
            response=known(_RESPONSES, message.response, f"{field}.response"),
            primitive=known(_PRIMITIVES, message.primitive, f"{field}.primitive"),
            **{**given_settings(message), "projection_method": method, "unscented": unscented},
        )


def _forward(plan: GaussianPlan, inputs: Tensors, outputs: Sequence[str], **options: Any) -> Steps[gaussians.Forward]:
    scene = {name: tensor for name, tensor in inputs.items() if name not in plan.rays}
    rays = stacked(inputs, plan.rays, plan.field) if plan.rays else None
    # The kernels refuse lidars on GPUs.
    with arguments_of(plan.field):
        steps = gaussians.forward_steps(
            gaussians.Gaussians(**scene),
            plan.cameras,
            plan.settings,
            background=plan.background_on(inputs["means"].device),
            transforms=plan.transforms,
            rays=rays,
            outputs=outputs,
            **options,
        )
        return (yield from steps)


GAUSSIANS = RenderEngine(
    KIND,
    _forward,
    gaussians.backward_steps,
    levels=("color",),
    rows=lambda state: shapes_of(state.gaussians.tensors()),
    skips_untouched=True,
    plan=gaussian_plan,
)
