"""A small driving scene as files, its Gaussians, and requests for frames of it."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from scipy.spatial.transform import Rotation

from lumigrad.client import Gaussians
from support.driving.stubs import GLOBAL, MESSAGES, PNG

SCENE = "street-1"
WIDE, FRONT, AROUND = "camera_front_wide_120fov", "camera_front_tele_30fov", "camera_fisheye"
START_US, END_US = 1_000_000, 3_000_000
# A camera that looks along x of its rig: x y z w.
FORWARD = (-0.5, 0.5, -0.5, 0.5)
F_THETA = {
    **{"principal_point": [79.0, 60.5], "reference_poly": "pixel_to_angle", "pixeldist_to_angle": [0, 0.0125, 1e-6]},
    **{"angle_to_pixeldist": [0, 80.0], "max_angle": 1.35},
    "linear_cde": {"linear_c": 1.01, "linear_d": 0.002, "linear_e": -0.001},
}
PINHOLE = {
    **{"focal_length": [110.0, 112.0], "principal_point": [81.0, 47.0], "radial": [-0.1, 0.02, 0, 0, 0, 0]},
    **{"tangential": [0.001, -0.002], "thin_prism": [0.001, 0, -0.001, 0]},
}
FISHEYE = {"focal_length": [38.0, 38.0], "principal_point": [60.0, 60.0], "radial": [0.01, -0.002], "max_angle": 1.5}
LENSES: dict[str, tuple[list[int], dict[str, Any]]] = {
    WIDE: ([120, 160], {"model": "ftheta", "ftheta": F_THETA}),
    FRONT: ([96, 160], {"model": "opencv_pinhole", "opencv_pinhole": PINHOLE}),
    AROUND: ([120, 120], {"model": "opencv_fisheye", "opencv_fisheye": FISHEYE}),
}


@dataclass
class Street:
    """The files of a scene, and what is in them."""

    folder: Path
    world: Gaussians
    car: Gaussians
    manifest: dict[str, Any]

    @property
    def file(self) -> Path:
        """The manifest."""
        return self.folder / self.manifest["scene_id"] / "scene.json"

    def write(self, **changes: Any) -> None:
        """Write the manifest with some of its fields replaced; None leaves one out."""
        changed = {**copy.deepcopy(self.manifest), **changes}
        self.file.write_text(json.dumps({name: value for name, value in changed.items() if value is not None}))


def _cloud(random: np.random.Generator, count: int, low: Any, high: Any, size: float, degree: int) -> Gaussians:
    quats = random.normal(size=(count, 4))
    sh = random.normal(0.0, 0.1, (count, (degree + 1) ** 2, 3))
    sh[:, 0] = random.uniform(-1.5, 1.5, (count, 3))
    return Gaussians(
        random.uniform(low, high, (count, 3)), quats / np.linalg.norm(quats, axis=1, keepdims=True),
        random.uniform(0.5 * size, size, (count, 3)), random.uniform(0.3, 0.95, count), sh=sh,
    )  # fmt: skip


def street(folder: Path, scene_id: str = SCENE, world_count: int = 400, seed: int = 5) -> Street:
    """Write a street with a car, three cameras and an ego mask below `folder`."""
    random = np.random.default_rng(seed)
    world = _cloud(random, world_count, [3, -12, -1], [30, 12, 8], 0.5, 2)
    car = _cloud(random, 60, [-2, -0.9, -0.7], [2, 0.9, 0.7], 0.25, 1)
    place = folder / scene_id
    place.mkdir(parents=True)
    world.save(place / "world.ply")
    car.save(place / "car.ply")
    mask = np.zeros((12, 16, 4), np.uint8)
    mask[9:] = 20, 40, 60, 255
    Image.fromarray(mask).save(place / "hood.png")
    mount = {"translation_m": [1.5, 0.1, 1.4], "rotation_xyzw": list(FORWARD)}
    cameras = [
        {"logical_id": name, "resolution_hw": size, "shutter_type": "GLOBAL", "intrinsics": lens}
        | {"pose_in_rig": copy.deepcopy(mount)}
        for name, (size, lens) in LENSES.items()
    ]
    track = {
        **{"track_id": "car", "semantic_class": "automobile", "size_m": [4.5, 2.0, 1.6], "gaussians": "car.ply"},
        "timestamps_us": [START_US, 2_500_000],
        "poses": [[9, 3, 1.6, 0, 0, 0, 1], [9, -3, 1.6, 0, 0, 0.5, 0.8660254037844386]],
    }
    rig = {"timestamps_us": [START_US, END_US], "poses": [[0, 0, 0, 0, 0, 0, 1], [20, 0, 0, 0, 0, 0, 1]]}
    manifest = {
        **{"format": "lumigrad.drive", "version": 1, "scene_id": scene_id, "time_range_us": [START_US, END_US]},
        **{"gaussians": [{"file": "world.ply"}], "tracks": [track], "cameras": cameras, "trajectories": [rig]},
        "ego_masks": [{"camera_logical_id": WIDE, "rig_config_id": "rig-1", "image": "hood.png"}],
    }
    made = Street(folder, world, car, manifest)
    (place / "scene.json").write_text(json.dumps(manifest))
    return made


def pose(position: Any, xyzw: Any = (0.0, 0.0, 0.0, 1.0)) -> Any:
    """A pose as a message."""
    x, y, z, w = map(float, xyzw)
    vec = dict(zip("xyz", map(float, position), strict=True))
    return MESSAGES["Pose"](vec=vec, quat={"w": w, "x": x, "y": y, "z": z})


def matrix_of(message: Any) -> np.ndarray:
    """[4, 4] of a pose message, float64."""
    quat, vec, matrix = message.quat, message.vec, np.eye(4)
    matrix[:3, :3] = Rotation.from_quat([quat.x, quat.y, quat.z, quat.w]).as_matrix()
    matrix[:3, 3] = vec.x, vec.y, vec.z
    return matrix


def camera_spec(name: str, **changes: Any) -> Any:
    """A camera's intrinsics as a simulator sends them, from those of the manifest."""
    (height, width), lens = LENSES[name]
    spec = MESSAGES["CameraSpec"](logical_id=name, resolution_h=height, resolution_w=width, shutter_type=GLOBAL)
    given = dict(lens[lens["model"]])
    center = dict(zip(("principal_point_x", "principal_point_y"), given["principal_point"], strict=True))
    if "focal_length" in given:
        center |= zip(("focal_length_x", "focal_length_y"), given["focal_length"], strict=True)
    if lens["model"] == "ftheta":
        spec.ftheta_param.CopyFrom(
            MESSAGES["Ftheta"](
                **center, reference_poly=1, pixeldist_to_angle_poly=given["pixeldist_to_angle"],
                angle_to_pixeldist_poly=given["angle_to_pixeldist"], max_angle=given["max_angle"],
                linear_cde=given["linear_cde"],
            )
        )  # fmt: skip
    else:
        kind = "Pinhole" if lens["model"] == "opencv_pinhole" else "Fisheye"
        rest = {f"{key}_coeffs": given[key] for key in ("radial", "tangential", "thin_prism") if key in given}
        rest |= {"max_angle": given["max_angle"]} if "max_angle" in given else {}
        getattr(spec, f"{lens['model']}_param").CopyFrom(MESSAGES[kind](**center, **rest))
    for field, value in changes.items():
        setattr(spec, field, value)
    return spec


def frame(name: str = FRONT, *, at: Any = (1.5, 0.1, 1.4), end: Any = None, **fields: Any) -> Any:
    """A request for a frame of a camera that starts at `at` and ends there or at `end`, which may be a Pose."""
    start = at if hasattr(at, "vec") else pose(at, FORWARD)
    stop = start if end is None else end if hasattr(end, "vec") else pose(end, FORWARD)
    (height, width), _ = LENSES[name]
    given = {
        **{"scene_id": SCENE, "resolution_h": height, "resolution_w": width, "camera_intrinsics": camera_spec(name)},
        **{"frame_start_us": 1_500_000, "frame_end_us": 1_530_000, "image_format": PNG},
        "sensor_pose": MESSAGES["PosePair"](start_pose=start, end_pose=stop),
    }
    return MESSAGES["Frame"](**{**given, **fields})


def moved(track_id: str, start: Any, end: Any = None) -> Any:
    """A dynamic object with these poses."""
    pair = MESSAGES["PosePair"](start_pose=start, end_pose=start if end is None else end)
    return MESSAGES["DynamicObject"](track_id=track_id, pose_pair=pair)
