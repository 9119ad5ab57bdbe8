"""Finds values in manifests of driving scenes that are valid but hardly meant: of other units, orders and frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from lumigrad.drive.v1 import sensorsim_pb2
from lumigrad.protos.drive.manifest import GaussianFile, Manifest, Track
from lumigrad.protos.drive.motion import Float64, Motion, RigidPose

# Racing cars reach 100 m/s. Seconds or milliseconds in place of microseconds make everything at least a thousand times
# as fast.
_FASTEST_M_S = 150.0
# Nanoseconds make it a thousand times as slow; unlike a parked object, it still moves further than this.
_SLOWEST_M_S, _MOVED_M = 0.05, 5.0
# Largest offset of a lens from the middle of its image, as a part of width or height; real cars have at most about 0.1.
_OFF_MIDDLE = 0.25
# Tolerance for polynomials of a lens that should be inverse to each other, as a part of the image's width.
_INVERSE = 0.05
# Gaussians of an object fill its box: their extent, without the outer percent on each side, differs by less than this
# factor.
_OUTER_PERCENT, _LARGER = 1.0, 3.0
# Largest distance of a rig from all Gaussians of its scene.
_AWAY_M = 1000.0
# Largest elevations above the horizon, as sines, of a camera's optical axis and of its downward axis.
_VERTICAL, _UPSIDE_DOWN = 0.98, 0.5
_ROTATIONS = "rotations are x y z w"


# Numbers that overflow are doubtful themselves.
@np.errstate(all="ignore")
def doubts(scene: Manifest) -> list[str]:
    """Return what is probably wrong in a manifest, each with its field; does not read the files that it names."""
    found: list[str] = []
    for index, motion in enumerate(scene.trajectories):
        found += _of_motion(motion, f"trajectories[{index}]", "the rig")
    for index, track in enumerate(scene.tracks):
        found += _of_motion(track.motion, f"tracks[{index}]", "the object")
        found += _of_times(track, f"tracks[{index}]", scene.time_range_us)
    for index, camera in enumerate(scene.cameras):
        found += _of_place(camera.rig_to_camera, f"cameras[{index}].pose_in_rig.rotation_xyzw")
        found += _of_lens(camera.intrinsics, f"cameras[{index}]")
    return found


@np.errstate(all="ignore")
def doubts_of_files(scene: Manifest, means: Sequence[Float64]) -> list[str]:
    """Return what is probably wrong between a manifest and its files; `means` [N, 3] are those of `scene.files`."""
    found: list[str] = []
    fixed, moved = means[: len(scene.gaussians)], means[len(scene.gaussians) :]
    for index, (track, points) in enumerate(zip(scene.tracks, moved, strict=True)):
        found += _of_extent(track, points, f"tracks[{index}].size_m")
    boxes = [_box(file, points) for file, points in zip(scene.gaussians, fixed, strict=True) if len(points)]
    for index, motion in enumerate(scene.trajectories):
        found += _of_distance(motion, boxes, f"trajectories[{index}].poses")
    return found


def _of_motion(motion: Motion, field: str, what: str) -> Iterator[str]:
    ups = [pose.rotation[2, 2] for pose in motion.poses]
    if np.median(ups) < 0:
        yield f"{field}.poses: {what} is upside down: its z axis points down; {_ROTATIONS}"
    places = np.array([pose.position for pose in motion.poses])
    steps = np.linalg.norm(np.diff(places, axis=0), axis=1)
    seconds = np.diff(np.array(motion.timestamps_us, np.float64)) * 1e-6
    if not steps.sum() > 0:
        return
    speeds = steps / seconds
    fastest = float(np.median(speeds[steps > 0]))
    if fastest > _FASTEST_M_S:
        yield f"{field}: {what} moves at {fastest:,.0f} m/s; timestamps_us are microseconds, positions metres"
    slowest = float(steps.sum() / seconds.sum())
    if slowest < _SLOWEST_M_S and steps.sum() > _MOVED_M:
        yield (
            f"{field}: {what} takes {seconds.sum():,.0f} s for {steps.sum():,.1f} m; timestamps_us are microseconds, "
            "positions metres"
        )


def _of_times(track: Track, field: str, span: tuple[int, int] | None) -> Iterator[str]:
    first, last = track.motion.timestamps_us[0], track.motion.timestamps_us[-1]
    if span is not None and (last < span[0] or first > span[1]):
        yield (
            f"{field}.timestamps_us: the object is in no frame: it exists from {first} to {last} us, and frames are "
            f"from {span[0]} to {span[1]} us, as time_range_us says"
        )


def _of_place(pose: sensorsim_pb2.Pose, field: str) -> Iterator[str]:
    quat = np.array([pose.quat.w, pose.quat.x, pose.quat.y, pose.quat.z], np.float64)
    rotation = RigidPose(np.zeros(3), quat / np.linalg.norm(quat)).rotation
    axes = f"its axes are x right, y down, z forward, and {_ROTATIONS}"
    if abs(rotation[2, 2]) > _VERTICAL:
        yield f"{field}: the camera looks straight {'up' if rotation[2, 2] > 0 else 'down'}; {axes}"
    elif rotation[2, 1] > _UPSIDE_DOWN:
        yield f"{field}: the camera is upside down; {axes}"


def _of_lens(spec: sensorsim_pb2.CameraSpec, field: str) -> Iterator[str]:
    model = str(spec.WhichOneof("camera_param"))
    lens, name = getattr(spec, model), model.removesuffix("_param")
    center = np.array([lens.principal_point_x, lens.principal_point_y])
    size = np.array([spec.resolution_w, spec.resolution_h])
    if (abs(center - size / 2) > _OFF_MIDDLE * size).any():
        yield (
            f"{field}.intrinsics.{name}.principal_point: {_numbers(center)} is far from the middle of "
            f"{size[0]}x{size[1]}; it is x y in pixels, and resolution_hw is height and width"
        )
    if name == "ftheta":
        yield from _of_polynomials(lens, field, float(size[0]))


def _of_polynomials(lens: sensorsim_pb2.FthetaCameraParam, field: str, width: float) -> Iterator[str]:
    """Compare the two polynomials of a lens over the image."""
    to_angle, to_pixel = lens.pixeldist_to_angle_poly, lens.angle_to_pixeldist_poly
    if not any(to_angle) or not any(to_pixel):
        return
    distances = np.linspace(0.0, width / 2, 9)
    again = np.polynomial.Polynomial(to_pixel)(np.polynomial.Polynomial(to_angle)(distances))
    worst = float(np.abs(again - distances).max())
    if not worst <= _INVERSE * width:
        yield (
            f"{field}.intrinsics.ftheta: pixeldist_to_angle and angle_to_pixeldist are not inverse to each other: they "
            f"differ by {worst:,.1f} pixels; reference_poly says which one counts"
        )


def _of_extent(track: Track, means: Float64, field: str) -> Iterator[str]:
    if not len(means):
        return
    low, high = np.percentile(means, (_OUTER_PERCENT, 100 - _OUTER_PERCENT), axis=0)
    extent, size, away = float((high - low).max()), float(track.size_m.max()), float(np.abs(low + high).max()) / 2
    if extent > _LARGER * size or size > _LARGER * extent:
        yield f"{field}: a box of {_numbers(track.size_m)} m has Gaussians of {_numbers(high - low)} m"
    elif away > size:
        yield f"{field}: the Gaussians are {away:,.1f} m off the middle of the box; files of tracks are in its frame"


def _box(file: GaussianFile, means: Float64) -> tuple[Float64, Float64]:
    """Return the box of a file's Gaussians in the local frame."""
    places = file.scale * means @ file.pose.rotation.T + file.pose.position
    return places.min(axis=0), places.max(axis=0)


def _of_distance(motion: Motion, boxes: Sequence[tuple[Float64, Float64]], field: str) -> Iterator[str]:
    places = np.array([pose.position for pose in motion.poses])
    away = [np.linalg.norm(places - np.clip(places, low, high), axis=1).min() for low, high in boxes]
    if away and min(away) > _AWAY_M:
        yield f"{field}: the rig is {min(away):,.0f} m away from all Gaussians; both are in the local frame, metres"


def _numbers(values: Float64) -> str:
    return " ".join(f"{value:.4g}" for value in values)
