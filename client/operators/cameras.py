"""Splits the cameras of operators into fixed parameters and differentiable arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np

from lumigrad.client.base.arguments import instance, one_of
from lumigrad.client.base.arrays import Array, Float64, check_shape
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.operators.gaussians import ViewMatrices, distortion_rows
from lumigrad.client.operators.sensors import F_THETA_CENTER, OF_LENS, OF_LIDAR, OF_WINDSHIELD, RAYS, SensorMatrices
from lumigrad.client.rendering.request import cameras_of
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.camera_models import OpenCVModel, Projection, SensorModel
from lumigrad.client.values.lenses import FisheyeLens, FThetaLens, OrthographicLens, PinholeLens, SpinningLidar

_MODELS: dict[type, str] = {
    PinholeLens: "pinhole",
    OrthographicLens: "orthographic",
    FisheyeLens: "fisheye",
    FThetaLens: "ftheta",
    SpinningLidar: "lidar",
}


@dataclass(frozen=True)
class Arrays:
    """Array operations of a framework.

    Attributes:
        real: checks that a named argument is an array of real numbers; returns it in the precision that is sent.
        single: checks that a named argument is an array of real numbers; returns it as float32.
        repeated: repeats an array [k] to [V, k]; its gradient is the sum over V.
    """

    real: Callable[[str, Any], Any]
    single: Callable[[str, Any], Any]
    repeated: Callable[[Any, int], Any]


@dataclass(frozen=True)
class Views:
    """C cameras.

    Attributes:
        matrices: the fixed parameters of the cameras; makes cameras from arrays.
        inputs: the arrays [C, ..] of the passed cameras, by the names of `INPUTS`; empty if no camera was passed.
    """

    matrices: ViewMatrices | SensorMatrices
    inputs: Mapping[str, Array]


def views_of(
    camera: Any, *, width: int | None, height: int | None, projection: Projection | None, distortion: Any, viewmats: Any
) -> Views:
    """Returns the cameras of an operator: those in `camera`, or cameras with the projection of the other arguments."""
    if camera is None:
        if width is None or height is None:
            raise InvalidArgument.of("width, height", "expected numbers of pixels without a camera, got None")
        model: Projection = projection or "pinhole"
        one_of("projection", model, get_args(Projection), quote='"')
        count = math.prod(np.shape(viewmats)[:-2]) if distortion is not None else 0
        return Views(ViewMatrices(width, height, model, distortion_rows(distortion, count)), {})
    cameras = (camera,) if isinstance(camera, Camera) else cameras_of(camera)
    parts = [_parts(each) for each in cameras]
    first = parts[0].matrices
    fixed = replace(first, distortion=()) if isinstance(first, ViewMatrices) else first
    for name, value in (("width", width), ("height", height), ("projection", projection), ("distortion", distortion)):
        if value is not None and not (name in ("width", "height") and value == getattr(first, name)):
            raise InvalidArgument.of(name, f"expected None with a camera, got {value!r}; the camera has its own")
    rows = [it.matrices.distortion if isinstance(it.matrices, ViewMatrices) else () for it in parts]
    for number, part in enumerate(parts):
        other = part.matrices
        if (replace(other, distortion=()) if isinstance(other, ViewMatrices) else other) != fixed:
            text = f"expected cameras that differ in poses and coefficients alone, but number {number} has another"
            raise InvalidArgument.of("camera", f"{text} size, lens or shutter than the first; render them apart")
    if isinstance(fixed, ViewMatrices) and any(rows):
        fixed = replace(fixed, distortion=tuple(row[0] if row else () for row in rows))
    return Views(fixed, {name: np.stack([it.inputs[name] for it in parts]) for name in parts[0].inputs})


def _parts(camera: Any) -> Views:
    """Returns a single camera, whose arrays have no camera axis."""
    instance("camera", camera, (Camera,), "make one with Camera.look_at, orbit, opencv or sensor")
    model = camera.model
    if isinstance(model, OpenCVModel):
        rows = (model.distortion,) if model.distortion else ()
        pinhole = ViewMatrices(camera.width, camera.height, model.projection, rows)
        return Views(pinhole, {"view": camera.view_matrix, "projection": camera.K})
    if not isinstance(model, SensorModel):
        text = f"expected one of OpenCV's or a sensor, got {type(model).__name__}; pass it to Client.render"
        raise InvalidArgument.of("camera", text)
    lens, inputs = model.lens, {"view": camera.view_matrix, "projection": _intrinsics(camera, model)}
    if model.end_rotation is not None and model.end_translation is not None:
        end = inputs["view_end"] = np.eye(4)
        end[:3, :3], end[:3, 3] = model.end_rotation, model.end_translation
    coefficients = {name: np.array(getattr(lens, name, ())) for name in OF_LENS}
    coefficients |= {name: np.array(getattr(model.windshield, name, ())) for name in OF_WINDSHIELD}
    if isinstance(lens, SpinningLidar):
        offsets = np.zeros(len(lens.row_elevations)) if lens.row_azimuth_offsets is None else lens.row_azimuth_offsets
        coefficients |= dict(zip(OF_LIDAR, (lens.row_elevations, lens.column_azimuths, offsets), strict=True))
    coefficients = {name: values for name, values in coefficients.items() if len(values)}
    matrices = SensorMatrices(
        camera.width,
        camera.height,
        _MODELS[type(lens)],
        model.shutter,
        model.row_time,
        getattr(lens, "domain", "monotone"),
        getattr(lens, "reference", "angle_to_pixel_distance"),
        getattr(lens, "max_angle", None),
        tuple((name, len(values)) for name, values in coefficients.items()),
        getattr(lens, "direction", "counter_clockwise"),
        getattr(lens, "behind", False),
    )
    rays = {} if model.rays is None else {RAYS: model.rays}
    return Views(matrices, {**inputs, **coefficients, **rays})


def _intrinsics(camera: Camera, model: SensorModel) -> Float64:
    """Returns the matrix K, or its substitute for a lens that has none."""
    if isinstance(model.lens, FThetaLens):
        cx, cy = model.lens.cx - F_THETA_CENTER, model.lens.cy - F_THETA_CENTER
        return np.array([[1.0, 0, cx], [0, 1, cy], [0, 0, 1]])
    return np.eye(3) if isinstance(model.lens, SpinningLidar) else camera.K


def sensor_inputs(
    views: Views, sizes: Sequence[int], arrays: Arrays, *, lens: Any, viewmats_end: Any, rays: Any
) -> tuple[ViewMatrices | SensorMatrices, dict[str, Any]]:
    """Returns the cameras, and their inputs besides view matrices and intrinsics.

    Args:
        views: the cameras.
        sizes: the leading sizes of the view matrices [.., 4, 4]; their product is V.
        arrays: the framework's operations.
        lens: coefficients by name, which replace those of the cameras; None: keep the cameras' own.
        viewmats_end: poses at the end of the exposure, which replace those of the cameras; None: keep them.
        rays: rays of pixels, which replace those of the cameras; None: keep them.
    """
    matrices, inputs = views.matrices, dict[str, Any]()
    count = math.prod(sizes)
    if rays is not None and isinstance(matrices, ViewMatrices) and not matrices.distortion:
        matrices = SensorMatrices(
            matrices.width, matrices.height, matrices.model, "global", "continuous", "monotone",
            "angle_to_pixel_distance", None, (), "counter_clockwise",
        )  # fmt: skip
    if isinstance(matrices, ViewMatrices):
        for name, value in (("lens", lens), ("viewmats_end", viewmats_end), ("rays", rays)):
            if value is not None:
                raise InvalidArgument.of(name, "expected None without a sensor; pass camera=Camera.sensor(…)")
        return _of_each_scene(matrices, sizes) if views.inputs else matrices, inputs
    given, known = dict(lens or {}), dict(matrices.counts)
    for name in given:
        if name not in known:
            has = ", ".join(known) or "none"
            raise InvalidArgument.of("lens", f"expected names of coefficients that the camera has, {has}; got {name!r}")
    own = {name: np.broadcast_to(array, (*sizes[:-1], *array.shape)) for name, array in views.inputs.items()}
    for name, length in known.items():
        values = arrays.real(f"lens[{name!r}]", given.get(name, own[name]))
        shared = values.ndim == 1
        check_shape(f"lens[{name!r}]", values.shape, (length,) if shared else (*sizes, length))
        inputs[name] = arrays.repeated(values, count) if shared else values.reshape(-1, length)
    if viewmats_end is not None and matrices.shutter == "global":
        raise InvalidArgument.of("viewmats_end", 'expected None with the shutter "global"')
    for name, target, value, shape in (
        ("viewmats_end", "view_end", viewmats_end, (4, 4)),
        ("rays", RAYS, rays, (matrices.height, matrices.width, 6)),
    ):
        if value is not None:
            inputs[target] = (arrays.single if target == RAYS else arrays.real)(name, value)
            check_shape(name, inputs[target].shape, (*sizes, *shape))
        elif target in own:
            inputs[target] = arrays.real(name, own[target])
    return matrices, inputs


def _of_each_scene(matrices: ViewMatrices, sizes: Sequence[int]) -> ViewMatrices:
    """Repeats the passed cameras for each scene of a batch."""
    count = len(matrices.distortion)
    if count not in (0, sizes[-1]):
        text = f"expected one for each camera, of which there are {count}, got {sizes[-1]}"
        raise InvalidArgument.of("viewmats", text)
    return replace(matrices, distortion=matrices.distortion * math.prod(sizes[:-1]))
