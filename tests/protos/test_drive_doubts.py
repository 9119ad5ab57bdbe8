"""Valid manifests that are hardly intended: `doubts` names the field, and reports nothing about proper scenes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from lumigrad.client import Gaussians
from lumigrad.protos.drive.doubts import doubts, doubts_of_files
from lumigrad.protos.drive.manifest import Manifest, read_manifest
from support.driving.scenes import FORWARD, Street, street


@pytest.fixture
def place(tmp_path: Path) -> Street:
    made = street(tmp_path)
    # All tests share the lenses.
    made.manifest = copy.deepcopy(made.manifest)
    return made


def said(place: Street) -> list[str]:
    """Returns all doubts about the scene as its file is now."""
    scene = read_manifest(place.file)
    return doubts(scene) + doubts_of_files(scene, means_of(scene))


def means_of(scene: Manifest) -> list[np.ndarray]:
    return [np.asarray(Gaussians.load(file.path).means, np.float64) for file in scene.files]


def test_a_scene_as_it_should_be_has_no_doubts(place: Street) -> None:
    assert said(place) == []


def test_a_scene_that_rests_has_no_doubts(place: Street) -> None:
    place.manifest["trajectories"][0].update(timestamps_us=[1_000_000], poses=[[0, 0, 0, 0, 0, 0, 1]])
    parked = [9, 3, 1.6, 0, 0, 0, 1]
    place.manifest["tracks"][0].update(timestamps_us=[0, 3_600_000_000], poses=[parked, [*parked[:2], 1.7, 0, 0, 0, 1]])
    place.write()
    assert said(place) == []


@pytest.mark.parametrize("angle", [0.0, 0.3, np.pi / 2, 2.0, np.pi])
def test_cameras_and_rigs_that_turn_about_the_vertical_are_no_doubt(place: Street, angle: float) -> None:
    about = Rotation.from_rotvec([0, 0, angle])
    for pose in place.manifest["trajectories"][0]["poses"]:
        pose[3:] = about.as_quat().tolist()
    for camera in place.manifest["cameras"]:
        camera["pose_in_rig"]["rotation_xyzw"] = (about * Rotation.from_quat(FORWARD)).as_quat().tolist()
    place.write()
    assert said(place) == []


def change(path: str, to: Any) -> Callable[[Any], None]:
    """Sets a value in a manifest, at a path such as "cameras.0.windshield"."""
    *steps, last = (int(step) if step.isdigit() else step for step in path.split("."))

    def apply(manifest: Any) -> None:
        reduce(getitem, steps, manifest)[last] = to

    return apply


def _times(factor: float) -> Callable[[Any], None]:
    """Change the unit of all times."""

    def apply(manifest: Any) -> None:
        for motion in (*manifest["tracks"], *manifest["trajectories"]):
            motion["timestamps_us"] = [int(time * factor) for time in motion["timestamps_us"]]
        manifest["time_range_us"] = [int(time * factor) for time in manifest["time_range_us"]]

    return apply


LENS, TURN, RIG = "cameras.0.intrinsics.ftheta", "cameras.0.pose_in_rig.rotation_xyzw", "trajectories.0.poses"
AWAY = [[500_000, 5_400_000, 0, 0, 0, 0, 1], [500_020, 5_400_000, 0, 0, 0, 0, 1]]
ODD: dict[str, tuple[Callable[[Any], None], str]] = {
    "times in milliseconds": (_times(1e-3), "trajectories[0]: the rig moves at 10,000 m/s"),
    "times in nanoseconds": (_times(1e3), "trajectories[0]: the rig takes 2,000 s for 20.0 m"),
    "rotations of the rig as w x y z":
        (change(RIG, [[0, 0, 0, 1, 0, 0, 0], [20, 0, 0, 0.995, 0, 0, 0.1]]), "trajectories[0].poses: the rig is up"),
    "rotations of a track as w x y z":
        (change("tracks.0.poses", [[9, 3, 1.6, 1, 0, 0, 0], [9, -3, 1.6, 0.866, 0, 0, 0.5]]),
         "tracks[0].poses: the object is upside down"),
    "a camera with the axes of the rig":
        (change(TURN, [0, 0, 0, 1]), "cameras[0].pose_in_rig.rotation_xyzw: the camera looks straight up"),
    "a camera as w x y z with the axes of the rig":
        (change(TURN, [1, 0, 0, 0]), "cameras[0].pose_in_rig.rotation_xyzw: the camera looks straight down"),
    "a camera with y up":
        (change(TURN, [0.5, 0.5, 0.5, 0.5]), "cameras[0].pose_in_rig.rotation_xyzw: the camera is upside down"),
    "a size as width and height":
        (change("cameras.0.resolution_hw", [160, 70]),
         "cameras[0].intrinsics.ftheta.principal_point: 79 60.5 is far from the middle of 70x160"),
    "a principal point as fractions":
        (change("cameras.1.intrinsics.opencv_pinhole.principal_point", [0.5, 0.5]),
         "cameras[1].intrinsics.opencv_pinhole.principal_point: 0.5 0.5 is far from the middle of 160x96"),
    "polynomials of two lenses":
        (change(f"{LENS}.angle_to_pixeldist", [0, 40.0]),
         "cameras[0].intrinsics.ftheta: pixeldist_to_angle and angle_to_pixeldist are not inverse"),
    "an object of another time":
        (change("time_range_us", [10_000_000, 20_000_000]),
         "tracks[0].timestamps_us: the object is in no frame: it exists from 1000000 to 2500000 us"),
    "a box in millimetres":
        (change("tracks.0.size_m", [4500, 2000, 1600]),
         "tracks[0].size_m: a box of 4500 2000 1600 m has Gaussians of 3."),
    "the world as an object":
        (change("tracks.0.gaussians", "world.ply"), "tracks[0].size_m: a box of 4.5 2 1.6 m has Gaussians of"),
    "a rig in the coordinates of a map": (change(RIG, AWAY), "trajectories[0].poses: the rig is 5,4"),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_what_is_hardly_meant_is_said_with_its_field(place: Street, name: str) -> None:
    spoil, expected = ODD[name]
    spoil(place.manifest)
    place.write()
    assert any(doubt.startswith(expected) for doubt in said(place)), said(place)


def test_gaussians_off_the_middle_of_their_box_are_said(place: Street) -> None:
    moved = Gaussians.load(place.file.parent / "car.ply")
    means = np.asarray(moved.means) + np.float32([9, 3, 1.6])
    Gaussians(means, moved.quats, moved.scales, moved.opacities, sh=moved.sh).save(place.file.parent / "car.ply")
    (doubt,) = said(place)
    assert doubt.startswith("tracks[0].size_m: the Gaussians are 9.") and "files of tracks are in its frame" in doubt


def test_a_file_in_the_coordinates_of_a_map_with_its_pose_is_no_doubt(place: Street) -> None:
    place.manifest["trajectories"][0]["poses"] = AWAY
    place.manifest["gaussians"][0]["pose"] = {"translation_m": AWAY[0][:3], "rotation_xyzw": [0, 0, 0, 1]}
    place.write()
    assert said(place) == []


@pytest.mark.filterwarnings("error")
def test_numbers_that_overflow_are_said_without_a_word_of_numpy(place: Street) -> None:
    far = [[-1e308, 0, 0, 0, 0, 0, 1], [1e308, 0, 0, 0, 0, 0, 1]]
    place.manifest["trajectories"][0].update(timestamps_us=[2**63 - 2, 2**63 - 1], poses=far)
    place.manifest["cameras"][0]["intrinsics"]["ftheta"]["angle_to_pixeldist"] = [0, 80.0, 1e308, 1e308, 1e308, 1e308]
    place.write()
    found = said(place)
    assert any(doubt.startswith("trajectories[0]: the rig moves at inf m/s") for doubt in found), found
    assert any("are not inverse to each other" in doubt for doubt in found), found
