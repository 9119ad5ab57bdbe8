"""Cameras for Gaussians: converts messages to the kernels' cameras."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from lumigrad.kernels.gaussians import (
    Camera,
    FisheyeLens,
    FThetaLens,
    OrthographicLens,
    PinholeLens,
    SensorLens,
    Settings,
    SpinningLidar,
    Windshield,
)
from lumigrad.server.core.limits import arguments_of, known, names_of, require
from lumigrad.server.engines.content import Shapes
from lumigrad.server.engines.requests import check_length, check_model, check_pose, projection_of, rows
from lumigrad.v1 import camera_pb2, gaussians_pb2, render_pb2

MODELS = ("opencv", "inria", "sensor")
_METHODS = names_of(gaussians_pb2.ProjectionMethod)
_SHUTTERS = names_of(camera_pb2.Shutter)
_ROW_TIMES = names_of(camera_pb2.RowTime)
_DOMAINS = names_of(camera_pb2.LensDomain)
_REFERENCES = names_of(camera_pb2.FThetaReference)
_DIRECTIONS = names_of(camera_pb2.SpinDirection)
_LENSES: dict[str, type[SensorLens]] = {
    "pinhole": PinholeLens,
    "orthographic": OrthographicLens,
    "fisheye": FisheyeLens,
    "ftheta": FThetaLens,
    "lidar": SpinningLidar,
}
# Enums of lenses: the kernels' names of their values.
_ENUMS = {"domain": _DOMAINS, "reference": _REFERENCES, "direction": _DIRECTIONS}
_GLASS = ("horizontal", "vertical", "horizontal_inverse", "vertical_inverse")
# Paths of the parameters of a sensor other than those of its lens.
_OF_SENSOR = {
    **{name: f"start.{name}" for name in ("rotation", "translation")},
    **{f"end_{name}": f"end.{name}" for name in ("rotation", "translation")},
    **{name: f"windshield.{name}" for name in _GLASS},
}


def gaussian_cameras(spec: render_pb2.RenderSpec, field: str) -> list[Camera]:
    """Check and create the cameras of a request for Gaussians; `field` is the spec's path."""
    where, number = f"{field}.gaussians.projection_method", spec.gaussians.projection_method
    known(_METHODS, number, where)
    as_sensor = makes_sensors(spec.gaussians)
    cameras = [
        _camera(camera, f"{field}.cameras[{index}]", as_sensor=as_sensor) for index, camera in enumerate(spec.cameras)
    ]
    _check_alike(cameras, f"{field}.cameras")
    if number == gaussians_pb2.PROJECTION_METHOD_JACOBIAN:
        for kind, found in (
            ("lidars", cameras[0].lidar is not None),
            ("rolling shutters", any(camera.is_rolling for camera in cameras)),
        ):
            limit = f"PROJECTION_METHOD_UNSCENTED or none with {kind}"
            require(not found, where, limit, "PROJECTION_METHOD_JACOBIAN")
    return cameras


def makes_sensors(settings: gaussians_pb2.GaussianSettings) -> bool:
    """Return whether OpenCV's cameras are rendered as sensors: by sigma points or along rays."""
    is_surfel = settings.primitive == gaussians_pb2.PRIMITIVE_SURFEL
    on_rays = settings.response == gaussians_pb2.RESPONSE_RAY and not is_surfel
    return on_rays or settings.projection_method == gaussians_pb2.PROJECTION_METHOD_UNSCENTED


def projection_method(spec: render_pb2.RenderSpec) -> str:
    """Return the kernels' name of the projection method of a checked request."""
    number = spec.gaussians.projection_method
    is_sensor = spec.cameras[0].WhichOneof("model") == "sensor"
    if number == gaussians_pb2.PROJECTION_METHOD_UNSPECIFIED:
        return "unscented" if is_sensor else "jacobian"
    return _METHODS[number]


def check_projection(camera: Camera, settings: Settings, shapes: Shapes, field: str) -> None:
    """Check that the scene and the settings, whose path is `field`, fit the projection of Gaussians."""
    if not camera.is_sensor:
        for name, value in settings.sensor_settings.items():
            require(False, f"{field}.{name}", "the default unless Gaussians are projected by sigma points", value)
        return
    kind = "rays" if settings.response == "ray" else "sigma points"
    kind = "sensors" if settings.projection_method == "jacobian" and settings.response != "ray" else kind
    require(not settings.inria, f"{field}.semantics", f"exact or gsplat with {kind}", settings.semantics)
    require(not settings.antialiased, f"{field}.antialiased", f"false with {kind}", True)
    center = settings.pixel_center
    require(center == 0.5, f"{field}.pixel_center", f"0.5 with {kind}", center)
    limit = f"a scene with quats and scales for {kind}"
    require("covariances" not in shapes, f"{field}.projection_method", limit, "covariances")


def check_response(cameras: Sequence[Camera], settings: Settings, has_rays: bool, field: str) -> None:
    """Check that cameras, whose spec has the path `field`, have the rays that settings require."""
    if settings.response != "ray":
        where = f"{field}.gaussians.response"
        require(cameras[0].lidar is None, where, "RESPONSE_RAY with lidars", "RESPONSE_PICTURE")
        require(not has_rays, f"{field}.cameras[0].sensor.rays", "none unless the response is RESPONSE_RAY", "some")
        return
    for index, camera in enumerate(cameras):
        source: Any = camera.source
        glass = source.windshield
        for name in () if glass is None or has_rays else _GLASS[2:]:
            where = f"{field}.cameras[{index}].sensor.windshield.{name}"
            require(len(getattr(glass, name)) > 0, where, "coefficients with RESPONSE_RAY", "none")


def _camera(message: camera_pb2.Camera, field: str, *, as_sensor: bool) -> Camera:
    """Check a message, whose path is `field`; with `as_sensor` OpenCV's cameras become sensors."""
    model = check_model(message, MODELS, field)
    where = f"{field}.{model}"
    elsewhere = {"width": f"{field}.width", "height": f"{field}.height", "model": f"{where}.projection"}
    if model == "opencv":
        check_pose(message.opencv, where)
        projection_of(message.opencv, where)
    elif model == "inria":
        limit = "opencv or sensor with PROJECTION_METHOD_UNSCENTED or RESPONSE_RAY"
        require(not as_sensor, where, limit, "inria")
        check_length(message.inria.view_matrix, 16, f"{where}.view_matrix")
        check_length(message.inria.full_projection, 16, f"{where}.full_projection")
        check_length(message.inria.position, 3, f"{where}.position")
    else:
        lens = _check_sensor(message.sensor, where)
        elsewhere |= {name: f"{where}.{path}" for name, path in _OF_SENSOR.items()}
        parameters = [parameter.name for parameter in getattr(message.sensor, lens).DESCRIPTOR.fields]
        elsewhere |= {name: f"{where}.{lens}.{name}" for name in parameters}
    if model == "sensor" and message.sensor.HasField("rays"):
        # Rays are not part of the kernels' camera.
        bare = camera_pb2.Camera()
        bare.CopyFrom(message)
        bare.sensor.ClearField("rays")
        message = bare
    # Unknown fields may have any size, and the cache would keep them beyond the call.
    message.DiscardUnknownFields()
    with arguments_of(where, elsewhere):
        if message.sensor.HasField("lidar"):
            # A lidar's tables are too large for the cache, and fast to read.
            return _sensor(message.sensor, message.width, message.height)
        return _known_camera(message.SerializeToString(deterministic=True), as_sensor)


def _check_sensor(message: camera_pb2.SensorCamera, field: str) -> str:
    """Check the fields of a sensor that the kernels do not see; returns the name of its lens."""
    lens = message.WhichOneof("lens")
    require(lens is not None, field, f"one of the lenses {', '.join(_LENSES)}", "none")
    shutter = known(_SHUTTERS, message.shutter, f"{field}.shutter")
    known(_ROW_TIMES, message.row_time, f"{field}.row_time")
    rolling = shutter != "global"
    limit = f"a pose, since the shutter is {shutter}" if rolling else "none with a global shutter"
    require(message.HasField("end") == rolling, f"{field}.end", limit, "none" if rolling else "a pose")
    for name in ("start", "end") if rolling else ("start",):
        check_pose(getattr(message, name), f"{field}.{name}")
    of_lens = getattr(message, str(lens))
    for name, names in _ENUMS.items():
        if name in of_lens.DESCRIPTOR.fields_by_name:
            known(names, getattr(of_lens, name), f"{field}.{lens}.{name}")
    return str(lens)


@lru_cache(maxsize=4096)
def _known_camera(serialized: bytes, as_sensor: bool) -> Camera:
    """Create a camera; cached, because creation is slow and trainers repeat their views."""
    message = camera_pb2.Camera.FromString(serialized)
    size = message.width, message.height
    if message.HasField("inria"):
        inria = message.inria
        matrices = rows(inria.view_matrix, 4), rows(inria.full_projection, 4)
        return Camera.inria(*matrices, list(inria.position), inria.tan_fov_x, inria.tan_fov_y, *size)
    if message.HasField("sensor"):
        return _sensor(message.sensor, *size)
    opencv = message.opencv
    pose = rows(opencv.rotation, 3), list(opencv.translation)
    focal, model = (opencv.fx, opencv.fy, opencv.cx, opencv.cy), projection_of(opencv, "projection")
    camera = Camera.opencv(*focal, *pose, *size, model=model, distortion=tuple(opencv.distortion))
    if not as_sensor:
        return camera
    film: dict[str, Any] = dict(zip(("fx", "fy", "cx", "cy"), focal, strict=True))
    if not camera.distorted:
        return Camera.sensor(_LENSES[model](**film), *pose, *size)
    k1, k2, p1, p2, *others = opencv.distortion
    return Camera.sensor(PinholeLens(**film, radial=(k1, k2, *others), tangential=(p1, p2)), *pose, *size)


def _sensor(message: camera_pb2.SensorCamera, width: int, height: int) -> Camera:
    end: dict[str, Any] = {}
    if message.HasField("end"):
        end = {"end_rotation": rows(message.end.rotation, 3), "end_translation": list(message.end.translation)}
    glass = None
    if message.HasField("windshield"):
        windshield = message.windshield
        glass = Windshield(**{name: tuple(getattr(windshield, name)) for name in _GLASS})
    return Camera.sensor(
        _lens(message),
        rows(message.start.rotation, 3),
        list(message.start.translation),
        width,
        height,
        shutter=_SHUTTERS[message.shutter],
        row_time=_ROW_TIMES[message.row_time],
        windshield=glass,
        **end,
    )


def _lens(message: camera_pb2.SensorCamera) -> SensorLens:
    name = str(message.WhichOneof("lens"))
    lens = getattr(message, name)
    given: dict[str, Any] = {}
    for field in lens.DESCRIPTOR.fields:
        value = getattr(lens, field.name)
        if field.name in _ENUMS:
            given[field.name] = _ENUMS[field.name][value]
        elif field.is_repeated:
            given[field.name] = list(value)
        elif not field.has_presence or lens.HasField(field.name):
            given[field.name] = value
    if not given.get("linear", True):
        del given["linear"]
    return _LENSES[name](**given)


def _check_alike(cameras: Sequence[Camera], field: str) -> None:
    """Check that all or no cameras are sensors, and that sensors have lenses and windshields of one kind."""
    first = outline(cameras[0])
    for index, camera in enumerate(cameras):
        where, found = f"{field}[{index}]", outline(camera)
        require((found is None) == (first is None), where, "sensors only, or no sensors", camera.model)
        if found is not None and first is not None:
            require(found[0] == first[0], f"{where}.sensor", f"a {first[0]}, as of the first camera", found[0])
            limit = f"{first[1]} coefficients, as of the first camera"
            require(found[1] == first[1], f"{where}.sensor.windshield", limit, f"{found[1]}")


def outline(camera: Camera) -> tuple[str, tuple[int, ...]] | None:
    """Return the lens's kind and the windshield's sizes, which all sensors of a call share; None for other cameras."""
    if not camera.is_sensor:
        return None
    source: Any = camera.source
    glass = source.windshield
    # Inverse polynomials count only if there are any.
    names = _GLASS if glass is not None and (glass.horizontal_inverse or glass.vertical_inverse) else _GLASS[:2]
    return type(source.lens).__name__, tuple(0 if glass is None else len(getattr(glass, name)) for name in names)
