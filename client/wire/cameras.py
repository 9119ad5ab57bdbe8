"""Converts cameras and render settings to protobuf messages, and cameras back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from lumigrad.client.base.arguments import values_of
from lumigrad.client.base.arrays import Float64
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.settings.gaussians import (
    DepthOrder,
    GaussianSemantics,
    GaussianSettings,
    Primitive,
    ProjectionMethod,
    Response,
    TileBounds,
)
from lumigrad.client.settings.spheres import Semantics, SphereSettings
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.camera_models import InriaModel, OpenCVModel, Projection, RowTime, SensorModel, Shutter
from lumigrad.client.values.lenses import (
    FisheyeLens,
    FThetaLens,
    Lens,
    LensDomain,
    OrthographicLens,
    PinholeLens,
    Reference,
    SpinDirection,
    SpinningLidar,
    Windshield,
)
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.v1 import camera_pb2, gaussians_pb2, spheres_pb2

_SEMANTICS = values_of(Semantics, spheres_pb2.Semantics)
_GAUSSIAN_SEMANTICS = values_of(GaussianSemantics, gaussians_pb2.GaussianSemantics)
_METHODS = values_of(ProjectionMethod, gaussians_pb2.ProjectionMethod)
_DEPTH_ORDERS = values_of(DepthOrder, gaussians_pb2.DepthOrder)
_TILE_BOUNDS = values_of(TileBounds, gaussians_pb2.TileBounds)
_RESPONSES = values_of(Response, gaussians_pb2.Response)
_PRIMITIVES = values_of(Primitive, gaussians_pb2.Primitive)
_PROJECTIONS = values_of(Projection, camera_pb2.Projection)
_SHUTTERS = values_of(Shutter, camera_pb2.Shutter)
_ROW_TIMES = values_of(RowTime, camera_pb2.RowTime)
_ENUMS = {
    "domain": values_of(LensDomain, camera_pb2.LensDomain),
    "reference": values_of(Reference, camera_pb2.FThetaReference),
    "direction": values_of(SpinDirection, camera_pb2.SpinDirection),
}
_LENSES: dict[type[Lens], tuple[str, Any]] = {
    PinholeLens: ("pinhole", camera_pb2.PinholeLens),
    OrthographicLens: ("orthographic", camera_pb2.OrthographicLens),
    FisheyeLens: ("fisheye", camera_pb2.FisheyeLens),
    FThetaLens: ("ftheta", camera_pb2.FThetaLens),
    SpinningLidar: ("lidar", camera_pb2.SpinningLidar),
}


def camera_message(camera: Camera, payload: PayloadWriter | None = None) -> camera_pb2.Camera:
    """Returns the message of a camera; its rays, if any, are appended to `payload`, or refused without one.

    The caller must not change the message, which may be cached.
    """
    model = camera.model
    if isinstance(model, SensorModel):
        return camera_pb2.Camera(width=camera.width, height=camera.height, sensor=_sensor_message(model, payload))
    message = _messages.get(camera)
    if message is None:
        message = _messages[camera] = _plain_message(camera)
    return message


# Cameras of a capture are used repeatedly, so their messages are cached for as long as they live.
_messages: WeakKeyDictionary[Camera, camera_pb2.Camera] = WeakKeyDictionary()


def _plain_message(camera: Camera) -> camera_pb2.Camera:
    model = camera.model
    width, height = camera.width, camera.height
    if isinstance(model, OpenCVModel):
        # Setting the fields one by one is fastest: viewers and simulators have a new camera in each call.
        message = camera_pb2.Camera(width=width, height=height)
        opencv = message.opencv
        opencv.fx, opencv.fy, opencv.cx, opencv.cy = model.fx, model.fy, model.cx, model.cy
        opencv.rotation.extend(model.rotation.ravel().tolist())
        opencv.translation.extend(model.translation.tolist())
        opencv.projection = _PROJECTIONS[model.projection]
        opencv.distortion.extend(model.distortion)
        return message
    values = {}
    for name in model.__match_args__:
        value = getattr(model, name)
        values[name] = value.ravel().tolist() if isinstance(value, np.ndarray) else value
    if isinstance(model, InriaModel):
        inria = camera_pb2.InriaCamera(position=values.pop("eye"), **values)
        return camera_pb2.Camera(width=width, height=height, inria=inria)
    return camera_pb2.Camera(width=width, height=height, pulsar=camera_pb2.PulsarCamera(**values))


def camera_of(message: camera_pb2.Camera) -> Camera:
    """Returns the camera of a message, without its rays."""
    size = message.width, message.height
    if message.HasField("sensor"):
        return Camera(*size, _sensor_of(message.sensor))
    if message.HasField("opencv"):
        opencv = message.opencv
        film, pose = (opencv.fx, opencv.fy, opencv.cx, opencv.cy), _pose_of(opencv)
        model = _name_of(_PROJECTIONS, opencv.projection)
        return Camera.opencv(*film, *pose, *size, model=model, distortion=tuple(opencv.distortion))
    if message.HasField("inria"):
        inria = message.inria
        view, full = (np.reshape(matrix, (4, 4)) for matrix in (inria.view_matrix, inria.full_projection))
        return Camera.inria(view, full, list(inria.position), inria.tan_fov_x, inria.tan_fov_y, *size)
    pulsar = message.pulsar
    kinds = {name: getattr(pulsar, name) for name in ("orthogonal", "right_handed", "first_r_then_t")}
    return Camera.pulsar(list(pulsar.parameters), *size, **kinds)


def _sensor_of(message: camera_pb2.SensorCamera) -> SensorModel:
    name = str(message.WhichOneof("lens"))
    kind, lens = next(kind for kind, (field, _) in _LENSES.items() if field == name), getattr(message, name)
    rotation, translation = _pose_of(message.start)
    end_rotation, end_translation = _pose_of(message.end) if message.HasField("end") else (None, None)
    windshield = message.windshield
    glass = {item.name: tuple(getattr(windshield, item.name)) for item in fields(Windshield)}
    return SensorModel(
        kind(**{item.name: _parameter_of(lens, item.name) for item in fields(kind) if _is_given(lens, item.name)}),
        rotation,
        translation,
        _name_of(_SHUTTERS, message.shutter),
        end_rotation,
        end_translation,
        _name_of(_ROW_TIMES, message.row_time),
        Windshield(**glass) if message.HasField("windshield") else None,
    )


def _is_given(lens: Any, name: str) -> bool:
    field = lens.DESCRIPTOR.fields_by_name[name]
    if field.is_repeated:
        return len(getattr(lens, name)) > 0
    return not field.has_presence or bool(lens.HasField(name))


def _parameter_of(lens: Any, name: str) -> Any:
    value = getattr(lens, name)
    if name in _ENUMS:
        return _name_of(_ENUMS[name], value)
    return value if isinstance(value, float | bool) else tuple(value)


def _pose_of(message: Any) -> tuple[Float64, Float64]:
    return np.reshape(message.rotation, (3, 3)), np.array(message.translation)


def _name_of(values: Mapping[Any, int], number: int) -> Any:
    """Returns the name of an enum's value; 0, which is unspecified, means the first value."""
    return next(name for name, value in values.items() if value == max(number, 1))


def _sensor_message(model: SensorModel, payload: PayloadWriter | None) -> camera_pb2.SensorCamera:
    field, kind = _LENSES[type(model.lens)]
    parameters = {item.name: getattr(model.lens, item.name) for item in fields(model.lens)}
    parameters |= {name: _ENUMS[name][value] for name, value in parameters.items() if name in _ENUMS}
    message = camera_pb2.SensorCamera(
        start=_pose_message(model.rotation, model.translation),
        shutter=_SHUTTERS[model.shutter],
        row_time=_ROW_TIMES[model.row_time],
        **{field: kind(**parameters)},
    )
    if model.end_rotation is not None and model.end_translation is not None:
        message.end.CopyFrom(_pose_message(model.end_rotation, model.end_translation))
    if model.windshield is not None:
        message.windshield.CopyFrom(camera_pb2.BivariateWindshield(**vars(model.windshield)))
    if model.rays is not None:
        if payload is None:
            raise InvalidArgument.of("rays", "expected none of a camera to train with; describe it by its lens")
        message.rays.rays.CopyFrom(payload.add(model.rays))
    return message


def _pose_message(rotation: Float64, translation: Float64) -> camera_pb2.CameraPose:
    return camera_pb2.CameraPose(rotation=rotation.ravel().tolist(), translation=translation.tolist())


def sphere_settings_message(settings: SphereSettings) -> spheres_pb2.SphereSettings:
    """Returns the message of sphere settings; fields that are None are left unset."""
    return spheres_pb2.SphereSettings(**{**settings.values(), "semantics": _SEMANTICS[settings.semantics]})


def gaussian_settings_message(settings: GaussianSettings) -> gaussians_pb2.GaussianSettings:
    """Returns the message of Gaussian settings; fields that are None are left unset."""
    transforms = [
        gaussians_pb2.SliceTransform(
            begin=begin,
            end=end,
            matrix=matrix.ravel().tolist(),
            matrix_end=[] if last is None else last.ravel().tolist(),
        )
        for begin, end, matrix, last in settings.transforms
    ]
    named: dict[str, Any] = {"semantics": _GAUSSIAN_SEMANTICS[settings.semantics], "transforms": transforms}
    for name, values in _NAMED.items():
        chosen = getattr(settings, name)
        named[name] = None if chosen is None else values[chosen]
    if settings.unscented is not None:
        named["unscented"] = gaussians_pb2.UnscentedTransform(**vars(settings.unscented))
    return gaussians_pb2.GaussianSettings(**{**settings.values(), **named})


_NAMED = {
    "projection_method": _METHODS,
    "depth_order": _DEPTH_ORDERS,
    "tile_bounds": _TILE_BOUNDS,
    "response": _RESPONSES,
    "primitive": _PRIMITIVES,
}
