"""Frames of driving simulators as requests to the Gaussian engine.

Poses are those of the camera and objects in the local frame, and times are in microseconds. Everything is first moved
by a point near the camera, in float64, because a car may be kilometres from the origin.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lumigrad.drive.v1 import sensorsim_pb2
from lumigrad.protos.drive.motion import LENGTH_TOLERANCE, Float64, RigidPose, unit_quat
from lumigrad.server.core.errors import InvalidArgumentError, OutOfRangeError, UnknownNameError
from lumigrad.server.core.limits import Limits, require
from lumigrad.server.sensorsim import scans
from lumigrad.server.sensorsim.catalog import Catalog, DriveScene
from lumigrad.server.sensorsim.lenses import Optics, Size, check_finite_message, optics_of, size_of
from lumigrad.server.sensorsim.pictures import PictureStyle
from lumigrad.v1 import camera_pb2, gaussians_pb2, render_pb2

# Pose for the Gaussians of a track that is absent at the time of a frame: so far below that they are behind every
# camera or beyond the far plane.
_NOWHERE = RigidPose(np.array([0.0, 0.0, -1e15]), np.array([1.0, 0.0, 0.0, 0.0]))
# The most known ids shown in an error text.
_SHOWN = 10

Pair = tuple[RigidPose, RigidPose]
_Request = sensorsim_pb2.RGBRenderRequest | sensorsim_pb2.LidarRenderRequest


@dataclass(frozen=True, eq=False)
class DriveFrame:
    """A checked request for one picture or scan.

    Attributes:
        field: The path of the request, with a final ".", or empty.
        sensor: The poses, camera to local, at the start and at the end of the frame.
        tracks: The poses, object to local, at both ends, for each track of the scene; None for absent tracks.
        style: How the render becomes a picture, or the name of the lidar for a scan.
    """

    field: str
    scene: DriveScene
    size: Size
    optics: Optics
    sensor: Pair
    tracks: Sequence[Pair | None]
    style: PictureStyle | str

    @property
    def is_scan(self) -> bool:
        """Whether it is a lidar scan instead of a picture."""
        return isinstance(self.style, str)

    @property
    def origin(self) -> Float64:
        """The position of the camera at the start, [3]."""
        return self.sensor[0].position

    @cached_property
    def launch_key(self) -> Hashable:
        """A key that is equal for frames of a scene that can share a launch if their origins are close."""
        sensor = self.optics.sensor
        glass = sensor.windshield
        lens = sensor.WhichOneof("lens"), *(len(getattr(glass, field.name)) for field in glass.DESCRIPTOR.fields)
        poses = [None if pair is None else [_bytes(pose) for pose in self._ends(pair)] for pair in self.tracks]
        places = tuple(None if ends is None else b"".join(ends) for ends in poses)
        return self.size, lens, self.optics.is_wide, self.optics.is_rolling, places

    def camera(self, origin: Float64) -> camera_pb2.Camera:
        """Return the camera for the engine's request, in the local frame moved to `origin`."""
        sensor = camera_pb2.SensorCamera()
        sensor.CopyFrom(self.optics.sensor)
        sensor.start.CopyFrom(_view(self.sensor[0], origin))
        if self.optics.is_rolling:
            sensor.end.CopyFrom(_view(self.sensor[1], origin))
        return camera_pb2.Camera(width=self.size.width, height=self.size.height, sensor=sensor)

    def spec(self, origin: Float64, content_hash: str) -> render_pb2.RenderSpec:
        """Return the engine's request, in the local frame moved to `origin`, for the scene stored with this content."""
        background = self.scene.manifest.background
        outputs = scans.OUTPUTS if self.is_scan else ("color",)
        settings = gaussians_pb2.GaussianSettings(
            background=background if any(background) else (),
            transforms=self._transforms(origin, content_hash),
            depth_order=gaussians_pb2.DEPTH_ORDER_DISTANCE if self.optics.is_wide else gaussians_pb2.DEPTH_ORDER_Z,
        )
        spec = render_pb2.RenderSpec(gaussians=settings, outputs=outputs, cameras=[self.camera(origin)])
        spec.scene_ref.name = self.scene.scene_id
        return spec

    def _ends(self, pair: Pair) -> Sequence[RigidPose]:
        start, stop = pair
        return [start, stop] if self.optics.is_rolling and stop is not start else [start]

    def _transforms(self, origin: Float64, content_hash: str) -> list[gaussians_pb2.SliceTransform]:
        still: list[Pair | None] = [(file.pose, file.pose) for file in self.scene.manifest.gaussians]
        transforms = []
        for (begin, end), pair in zip(self.scene.slices(content_hash), [*still, *self.tracks], strict=True):
            if begin < end:
                ends = self._ends(pair or (_NOWHERE, _NOWHERE))
                matrices = [pose.matrix(origin).ravel().tolist() for pose in ends]
                named = dict(zip(("matrix", "matrix_end"), matrices, strict=False))
                transforms.append(gaussians_pb2.SliceTransform(begin=begin, end=end, **named))
        return transforms


def _bytes(pose: RigidPose) -> bytes:
    return pose.position.tobytes() + pose.quat.tobytes()


def _view(pose: RigidPose, origin: Float64) -> camera_pb2.CameraPose:
    """Return the world-to-camera pose of a camera-to-local pose, relative to `origin`."""
    rotation = pose.rotation.T
    translation = -rotation @ (pose.position - origin)
    return camera_pb2.CameraPose(rotation=rotation.ravel().tolist(), translation=translation.tolist())


def scene_of(catalog: Catalog, scene_id: str, field: str) -> DriveScene:
    """Return the scene of a request; `field` is the path of its id."""
    scene = catalog.scenes.get(scene_id)
    if scene is None:
        names = list(catalog.scenes)
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        raise UnknownNameError(field, f"one of {', '.join(names[:_SHOWN])}{more}", scene_id or "none")
    return scene


def frame_of(
    request: sensorsim_pb2.RGBRenderRequest,
    catalog: Catalog,
    limits: Limits,
    field: str,
    count_unknown: Callable[[], object],
) -> DriveFrame:
    """Check a request, whose path `field` is empty or ends in "."; `count_unknown` is called for unknown tracks."""
    scene = scene_of(catalog, request.scene_id, f"{field}scene_id")
    _check_times(request, scene, field)
    size = size_of(request, limits, field)
    optics = optics_of(request.camera_intrinsics, size, f"{field}camera_intrinsics")
    style = PictureStyle.of(request, catalog, field)
    return _placed(request, scene, size, optics, style, field, count_unknown)


def scan_of(
    request: sensorsim_pb2.LidarRenderRequest, catalog: Catalog, field: str, count_unknown: Callable[[], object]
) -> DriveFrame:
    """Check a request for a scan, as `frame_of` does for pictures."""
    scene = scene_of(catalog, request.scene_id, f"{field}scene_id")
    _check_times(request, scene, field)
    name = scans.lidar_of(request, field)
    size, optics = scans.size_of_lidar(name), scans.optics_of_lidar(name)
    return _placed(request, scene, size, optics, name, field, count_unknown)


def _placed(
    request: _Request,
    scene: DriveScene,
    size: Size,
    optics: Optics,
    style: PictureStyle | str,
    field: str,
    count_unknown: Callable[[], object],
) -> DriveFrame:
    """Return a frame at the poses of a request."""
    ends = ("start_pose", "end_pose") if optics.is_rolling else ("start_pose",)
    return DriveFrame(
        field=field,
        scene=scene,
        size=size,
        optics=optics,
        sensor=_pair(request.sensor_pose, ends, f"{field}sensor_pose"),
        tracks=_tracks(request, scene, ends, field, count_unknown),
        style=style,
    )


def _check_times(request: _Request, scene: DriveScene, field: str) -> None:
    start, end = request.frame_start_us, request.frame_end_us
    require(start <= end, f"{field}frame_end_us", f"a time of at least frame_start_us = {start}", end)
    span = scene.manifest.time_range_us
    if span is not None and not span[0] <= start <= span[1]:
        raise OutOfRangeError(f"{field}frame_start_us", f"a time from {span[0]} to {span[1]} microseconds", start)


def _pair(message: sensorsim_pb2.PosePair, ends: Sequence[str], field: str) -> Pair:
    poses = [_pose(getattr(message, end), f"{field}.{end}") for end in ends]
    if len(ends) == 1:
        # A global shutter does not use the end pose, but NaN or infinity is still the caller's mistake.
        check_finite_message(message.end_pose, f"{field}.end_pose")
    return poses[0], poses[-1]


def _pose(message: sensorsim_pb2.Pose, field: str) -> RigidPose:
    vec, quat = message.vec, message.quat
    position = np.array([vec.x, vec.y, vec.z])
    require(bool(np.isfinite(position).all()), f"{field}.vec", "finite numbers, metres", position.tolist())
    values = (quat.w, quat.x, quat.y, quat.z)
    unit = unit_quat(values)
    if unit is None:
        limit = f"a quaternion of length 1 within {LENGTH_TOLERANCE:.0%}"
        raise InvalidArgumentError(f"{field}.quat", limit, f"one of length {math.hypot(*values):.6g}")
    return RigidPose(position, unit)


def _tracks(
    request: _Request,
    scene: DriveScene,
    ends: Sequence[str],
    field: str,
    count_unknown: Callable[[], object],
) -> list[Pair | None]:
    """Return the poses of each track: as the request moves it, else as recorded, or None outside its recording."""
    known = {track.track_id for track in scene.manifest.tracks}
    moved: dict[str, Pair] = {}
    for index, item in enumerate(request.dynamic_objects):
        where = f"{field}dynamic_objects[{index}]"
        if item.track_id not in known:
            check_finite_message(item.pose_pair, f"{where}.pose_pair")
            count_unknown()
            continue
        require(item.track_id not in moved, f"{where}.track_id", "each track once", item.track_id)
        moved[item.track_id] = _pair(item.pose_pair, ends, f"{where}.pose_pair")
    start, end = request.frame_start_us, request.frame_end_us
    return [
        moved.get(track.track_id)
        or ((track.motion.at(start), track.motion.at(end)) if track.motion.covers(start) else None)
        for track in scene.manifest.tracks
    ]


# Patterns of paths in the engine's request, and the paths in the simulator's request.
_PARAMETERS: Mapping[str, str] = {
    r"pinhole\.(radial|tangential|thin_prism)": r"camera_intrinsics.opencv_pinhole_param.\1_coeffs",
    r"pinhole\.f([xy])": r"camera_intrinsics.opencv_pinhole_param.focal_length_\1",
    r"pinhole\.c([xy])": r"camera_intrinsics.opencv_pinhole_param.principal_point_\1",
    r"fisheye\.radial": r"camera_intrinsics.opencv_fisheye_param.radial_coeffs",
    r"fisheye\.max_angle": r"camera_intrinsics.opencv_fisheye_param.max_angle",
    r"fisheye\.f([xy])": r"camera_intrinsics.opencv_fisheye_param.focal_length_\1",
    r"fisheye\.c([xy])": r"camera_intrinsics.opencv_fisheye_param.principal_point_\1",
    r"ftheta\.pixel_distance_to_angle": r"camera_intrinsics.ftheta_param.pixeldist_to_angle_poly",
    r"ftheta\.angle_to_pixel_distance": r"camera_intrinsics.ftheta_param.angle_to_pixeldist_poly",
    r"ftheta\.max_angle": r"camera_intrinsics.ftheta_param.max_angle",
    r"ftheta\.linear": r"camera_intrinsics.ftheta_param.linear_cde",
    r"ftheta\.c([xy])": r"camera_intrinsics.ftheta_param.principal_point_\1",
    r"windshield\.(horizontal|vertical)(_inverse)?": (r"camera_intrinsics.bivariate_windshield_model_param.\1_poly\2"),
    r"(start|end)\.(rotation|translation)": r"sensor_pose.\1_pose",
}


def error_about(frame: DriveFrame, error: InvalidArgumentError) -> InvalidArgumentError:
    """Convert an error about the engine's request to one about the simulator's."""
    for pattern, path in _PARAMETERS.items():
        found = re.search(rf"cameras\[\d+\]\.sensor\.{pattern}$", error.field)
        if found is not None:
            return InvalidArgumentError(frame.field + found.expand(path), error.limit, error.value)
    sensor = "lidar_config" if frame.is_scan else "camera_intrinsics"
    return InvalidArgumentError(f"{frame.field}{sensor}", error.limit, error.value)
