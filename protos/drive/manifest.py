"""Manifests of driving scenes: `scene.json` in a folder for each scene, format "lumigrad.drive" version 1.

docs/simulators.md describes the fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from lumigrad.drive.v1 import sensorsim_pb2
from lumigrad.protos.drive.json_node import JsonNode, ManifestError
from lumigrad.protos.drive.motion import Float64, Motion, RigidPose, unit_quat

NAME = "scene.json"
FORMAT, VERSION = "lumigrad.drive", 1
_MOST_TIME_US = (1 << 63) - 1
_MOST_PIXELS = (1 << 31) - 1
# Numbers of coefficients of a windshield's polynomials, which have two variables and orders 0 to 5.
_GLASS_COUNTS = (1, 3, 6, 10, 15, 21)
_SHUTTERS = tuple(value.name for value in sensorsim_pb2.ShutterType.DESCRIPTOR.values[1:])
# The polynomial of an f-theta lens that counts, and its number in messages, by `reference_poly`.
_REFERENCES = {
    "pixel_to_angle": ("pixeldist_to_angle", sensorsim_pb2.FthetaCameraParam.PIXELDIST_TO_ANGLE),
    "angle_to_pixel": ("angle_to_pixeldist", sensorsim_pb2.FthetaCameraParam.ANGLE_TO_PIXELDIST),
}
IDENTITY = RigidPose(np.zeros(3), np.array([1.0, 0.0, 0.0, 0.0]))


@dataclass(frozen=True, eq=False)
class GaussianFile:
    """A file of Gaussians and its place.

    Attributes:
        path: the file.
        field: where the manifest names it.
        pose: its frame in the local frame.
        scale: metres per unit of the file.
    """

    path: Path
    field: str
    pose: RigidPose = IDENTITY
    scale: float = 1.0


@dataclass(frozen=True, eq=False)
class Track:
    """An object that moves.

    Attributes:
        track_id: its name in requests.
        semantic_class: e.g. "automobile".
        size_m: [3] size of its box, metres.
        gaussians: its Gaussians, in its frame: x forward, y left, z up, the origin in the middle of its box.
        motion: object to local; it exists between the first and the last record.
    """

    track_id: str
    semantic_class: str
    size_m: Float64
    gaussians: GaussianFile
    motion: Motion


@dataclass(frozen=True, eq=False)
class EgoMask:
    """An RGBA picture that is laid over the pictures of a rig's camera."""

    camera_logical_id: str
    rig_config_id: str
    path: Path


@dataclass(frozen=True, eq=False)
class Manifest:
    """A driving scene.

    Attributes:
        folder: its folder.
        scene_id: its name in requests.
        time_range_us: first and last time of frames; None: any time.
        background: [3] colour, 0 to 1.
        gaussians: files of Gaussians that do not move.
        tracks: objects that move.
        cameras: the cameras of the rig.
        trajectories: motions of the rig, rig to local.
        ego_masks: pictures of the ego vehicle.
    """

    folder: Path
    scene_id: str
    time_range_us: tuple[int, int] | None
    background: tuple[float, ...]
    gaussians: tuple[GaussianFile, ...]
    tracks: tuple[Track, ...]
    cameras: tuple[sensorsim_pb2.AvailableCamera, ...]
    trajectories: tuple[Motion, ...]
    ego_masks: tuple[EgoMask, ...]

    @property
    def files(self) -> tuple[GaussianFile, ...]:
        """All files of Gaussians, those of tracks last."""
        return (*self.gaussians, *(track.gaussians for track in self.tracks))


def read_manifests(folder: str | PathLike[str]) -> tuple[Manifest, ...]:
    """Read the scenes in a folder: those of all subfolders that have a scene.json, by name, and its own.

    Raises:
        ManifestError: a manifest is invalid, two have the same scene_id, or there is none.
    """
    root = Path(folder)
    if not root.is_dir():
        raise ManifestError(f"{root}: expected a folder with a folder for each scene")
    manifests: dict[str, Manifest] = {}
    for file in sorted((*root.glob(NAME), *root.glob(f"*/{NAME}"))):
        manifest = read_manifest(file)
        other = manifests.setdefault(manifest.scene_id, manifest)
        if other is not manifest:
            raise ManifestError(f"{file}: scene_id: expected another than that of {other.folder}, {manifest.scene_id}")
    if not manifests:
        raise ManifestError(f"{root}: expected a folder for each scene with a {NAME}, got none")
    return tuple(manifests.values())


def read_manifest(file: str | PathLike[str]) -> Manifest:
    """Read and check a scene.json; the files that it names must exist, but are not read.

    Raises:
        ManifestError: it is invalid.
    """
    node = JsonNode.read(file)
    optional = ("time_range_us", "background", "tracks", "trajectories", "ego_masks")
    found = node.fields(("format", "version", "scene_id", "gaussians", "cameras"), optional)
    found["format"].choice((FORMAT,))
    found["version"].integer(VERSION, VERSION)
    scene = Manifest(
        folder=node.file.parent,
        scene_id=found["scene_id"].text(),
        time_range_us=_time_range(found["time_range_us"]) if "time_range_us" in found else None,
        background=_background(found["background"]) if "background" in found else (0.0, 0.0, 0.0),
        gaussians=tuple(map(_gaussians, found["gaussians"].items())),
        tracks=tuple(map(_track, _items(found, "tracks"))),
        cameras=tuple(map(_camera, found["cameras"].items())),
        trajectories=tuple(map(_motion, _items(found, "trajectories"))),
        ego_masks=tuple(map(_ego_mask, _items(found, "ego_masks"))),
    )
    if not scene.files:
        found["gaussians"].fail("at least one file, or a track")
    _check_unique(found, "tracks", "track_id", [track.track_id for track in scene.tracks])
    _check_unique(found, "cameras", "logical_id", [camera.logical_id for camera in scene.cameras])
    masks = [f"{mask.camera_logical_id} of {mask.rig_config_id}" for mask in scene.ego_masks]
    _check_unique(found, "ego_masks", "camera_logical_id", masks)
    return scene


def _items(found: Mapping[str, JsonNode], name: str) -> list[JsonNode]:
    return list(found[name].items()) if name in found else []


def _check_unique(found: Mapping[str, JsonNode], name: str, field: str, values: list[str]) -> None:
    for index, value in enumerate(values):
        if value in values[:index]:
            raise ManifestError(f"{found[name].file}: {name}[{index}].{field}: expected each once, got {value} again")


def _time_range(node: JsonNode) -> tuple[int, int]:
    times = [item.integer(0, _MOST_TIME_US) for item in node.items()]
    if len(times) != 2 or times[0] > times[1]:
        node.fail("the first and the last time, microseconds")
    return times[0], times[1]


def _background(node: JsonNode) -> tuple[float, ...]:
    color = tuple(node.numbers((3,)))
    if not all(0.0 <= channel <= 1.0 for channel in color):
        node.fail("three channels from 0 to 1")
    return color


def _file(node: JsonNode) -> Path:
    """Return the path of a file, or of a folder with a file's parts, in the folder of the manifest."""
    name, folder = Path(node.text()), node.file.parent
    inside = not name.is_absolute() and ".." not in name.parts
    if inside:
        inside = (folder / name).resolve().is_relative_to(folder.resolve())
    if not inside:
        node.fail("a file inside the scene's folder, without .. and links out of it")
    if not (folder / name).exists():
        node.fail("a file that exists")
    return folder / name


def _gaussians(node: JsonNode) -> GaussianFile:
    found = node.fields(("file",), ("pose", "scale"))
    pose = _pose(found["pose"]) if "pose" in found else IDENTITY
    scale = found["scale"].number(above=0.0) if "scale" in found else 1.0
    return GaussianFile(_file(found["file"]), found["file"].path, pose, scale)


def _pose(node: JsonNode) -> RigidPose:
    found = node.fields(("translation_m", "rotation_xyzw"))
    return RigidPose(np.array(found["translation_m"].numbers((3,))), _quat(found["rotation_xyzw"], 0))


def _quat(node: JsonNode, begin: int) -> Float64:
    """Return the unit quaternion w x y z of four numbers x y z w in a list."""
    x, y, z, w = node.numbers((begin + 4,))[begin:]
    quat = unit_quat((w, x, y, z))
    if quat is None:
        node.fail("a quaternion x y z w of length 1", f"one of length {(x * x + y * y + z * z + w * w) ** 0.5:g}")
    return quat


def _motion(node: JsonNode) -> Motion:
    return _motion_of(node.fields(("timestamps_us", "poses")))


def _motion_of(found: Mapping[str, JsonNode]) -> Motion:
    times, poses = found["timestamps_us"], list(found["poses"].items())
    stamps = [item.integer(0, _MOST_TIME_US) for item in times.items()]
    if not stamps or any(later <= earlier for earlier, later in pairwise(stamps)):
        times.fail("at least one time, and each later than the one before")
    if len(poses) != len(stamps):
        found["poses"].fail(f"{len(stamps)} poses, as many as timestamps_us", f"{len(poses)}")
    records = [RigidPose(np.array(node.numbers((7,))[:3]), _quat(node, 3)) for node in poses]
    return Motion(tuple(stamps), tuple(records))


def _track(node: JsonNode) -> Track:
    found = node.fields(("track_id", "semantic_class", "size_m", "gaussians", "timestamps_us", "poses"))
    size = np.array(found["size_m"].numbers((3,)))
    if not (size > 0).all():
        found["size_m"].fail("three sizes above 0, metres")
    return Track(
        track_id=found["track_id"].text(),
        semantic_class=found["semantic_class"].text(),
        size_m=size,
        gaussians=GaussianFile(_file(found["gaussians"]), found["gaussians"].path),
        motion=_motion_of(found),
    )


def _ego_mask(node: JsonNode) -> EgoMask:
    found = node.fields(("camera_logical_id", "rig_config_id", "image"))
    return EgoMask(found["camera_logical_id"].text(), found["rig_config_id"].text(), _file(found["image"]))


def _camera(node: JsonNode) -> sensorsim_pb2.AvailableCamera:
    required = ("logical_id", "resolution_hw", "shutter_type", "pose_in_rig", "intrinsics")
    found = node.fields(required, ("windshield",))
    name = found["logical_id"].text()
    size = [item.integer(1, _MOST_PIXELS) for item in found["resolution_hw"].items()]
    if len(size) != 2:
        found["resolution_hw"].fail("height and width, pixels")
    spec = sensorsim_pb2.CameraSpec(
        logical_id=name,
        resolution_h=size[0],
        resolution_w=size[1],
        shutter_type=found["shutter_type"].choice(_SHUTTERS),
    )
    intrinsics = found["intrinsics"].fields(("model",), tuple(_LENSES))
    model = intrinsics["model"].choice(tuple(_LENSES))
    if set(intrinsics) != {"model", model}:
        found["intrinsics"].fail(f"the parameters of the model, {model}, and of no other", ", ".join(intrinsics))
    _LENSES[model](intrinsics[model], spec)
    if "windshield" in found:
        _windshield(found["windshield"], spec.bivariate_windshield_model_param)
    pose = _pose(found["pose_in_rig"]).message()
    return sensorsim_pb2.AvailableCamera(intrinsics=spec, rig_to_camera=pose, logical_id=name)


def _film(found: Mapping[str, JsonNode]) -> dict[str, Any]:
    """Return the focal lengths, if there are any, and the principal point."""
    numbers: dict[str, float] = {}
    for name in ("focal_length", "principal_point"):
        if name in found:
            numbers |= zip((f"{name}_x", f"{name}_y"), found[name].numbers((2,)), strict=True)
    for name in ("focal_length_x", "focal_length_y"):
        if not numbers.get(name, 1.0) > 0.0:
            found["focal_length"].fail("two focal lengths above 0, pixels")
    return numbers


def _max_angle(found: Mapping[str, JsonNode]) -> dict[str, Any]:
    return {"max_angle": found["max_angle"].number(0.0, np.pi)} if "max_angle" in found else {}


def _coefficients(found: Mapping[str, JsonNode], lengths: Mapping[str, int], suffix: str) -> dict[str, Any]:
    given = {name: most for name, most in lengths.items() if name in found}
    return {f"{name}_{suffix}": found[name].numbers(range(most + 1)) for name, most in given.items()}


def _pinhole(node: JsonNode, spec: sensorsim_pb2.CameraSpec) -> None:
    lengths = {"radial": 6, "tangential": 2, "thin_prism": 4}
    found = node.fields(("focal_length", "principal_point"), tuple(lengths))
    lens = sensorsim_pb2.OpenCVPinholeCameraParam(**_film(found), **_coefficients(found, lengths, "coeffs"))
    spec.opencv_pinhole_param.CopyFrom(lens)


def _fisheye(node: JsonNode, spec: sensorsim_pb2.CameraSpec) -> None:
    lengths = {"radial": 4}
    found = node.fields(("focal_length", "principal_point"), (*lengths, "max_angle"))
    coefficients = _coefficients(found, lengths, "coeffs")
    lens = sensorsim_pb2.OpenCVFisheyeCameraParam(**_film(found), **coefficients, **_max_angle(found))
    spec.opencv_fisheye_param.CopyFrom(lens)


def _ftheta(node: JsonNode, spec: sensorsim_pb2.CameraSpec) -> None:
    lengths = {"pixeldist_to_angle": 6, "angle_to_pixeldist": 6}
    found = node.fields(("principal_point", "reference_poly"), (*lengths, "max_angle", "linear_cde"))
    reference = found["reference_poly"].choice(tuple(_REFERENCES))
    coefficients = _coefficients(found, lengths, "poly")
    name, number = _REFERENCES[reference]
    polynomial = coefficients.get(f"{name}_poly", [])
    if len(polynomial) < 2 or not polynomial[1] > 0.0:
        where = found.get(name, JsonNode(None, node.file, f"{node.path}.{name}"))
        where.fail("the reference polynomial to rise at 0: its second coefficient is above 0")
    lens = sensorsim_pb2.FthetaCameraParam(**_film(found), **coefficients, **_max_angle(found), reference_poly=number)
    if "linear_cde" in found:
        names = ("linear_c", "linear_d", "linear_e")
        linear = found["linear_cde"].fields(names)
        lens.linear_cde.CopyFrom(sensorsim_pb2.LinearCde(**{name: linear[name].number() for name in names}))
    spec.ftheta_param.CopyFrom(lens)


_LENSES = {"opencv_pinhole": _pinhole, "opencv_fisheye": _fisheye, "ftheta": _ftheta}


def _windshield(node: JsonNode, message: sensorsim_pb2.BivariateWindshieldModelParameters) -> None:
    forward, backward = ("horizontal", "vertical"), ("horizontal_inverse", "vertical_inverse")
    found = node.fields(forward, (*backward, "reference_poly"))
    for name in (*forward, *backward):
        if name in found:
            place = name.replace("_inverse", "_poly_inverse") if name in backward else f"{name}_poly"
            getattr(message, place).extend(found[name].numbers(_GLASS_COUNTS))
    if "reference_poly" in found:
        reference = found["reference_poly"].choice(("FORWARD", "BACKWARD"))
        message.MergeFrom(sensorsim_pb2.BivariateWindshieldModelParameters(reference_poly=reference))
