"""Manifests of driving scenes: what is read, and refusals that name file, field and reason."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.spatial.transform import Rotation, Slerp

from lumigrad.protos.drive.json_node import ManifestError
from lumigrad.protos.drive.manifest import read_manifest, read_manifests
from lumigrad.protos.drive.motion import Motion, RigidPose, unit_quat
from support.driving.scenes import FORWARD, SCENE, Street, street


@pytest.fixture
def place(tmp_path: Path) -> Street:
    return street(tmp_path)


def test_a_manifest_is_read_with_its_defaults(place: Street) -> None:
    place.write(time_range_us=None, tracks=None, trajectories=None, ego_masks=None)
    (scene,) = read_manifests(place.folder)
    assert (scene.scene_id, scene.time_range_us, scene.background) == (SCENE, None, (0.0, 0.0, 0.0))
    assert scene.files[0].path == place.folder / SCENE / "world.ply"
    np.testing.assert_array_equal(scene.files[0].pose.matrix(np.zeros(3)), np.eye(4))
    assert (scene.tracks, scene.trajectories, scene.ego_masks) == ((), (), ())


def test_a_windshield_is_read(place: Street) -> None:
    camera = {**place.manifest["cameras"][0], "windshield": {"horizontal": [0, 1, 0], "vertical": [0, 0, 1]}}
    place.write(cameras=[camera])
    glass = read_manifest(place.file).cameras[0].intrinsics.bivariate_windshield_model_param
    assert (list(glass.horizontal_poly), list(glass.vertical_poly_inverse)) == ([0, 1, 0], [])


def change(path: str, to: Any) -> Callable[[Any], None]:
    """Sets a value in a manifest, at a path such as "cameras.0.windshield"."""
    *steps, last = (int(step) if step.isdigit() else step for step in path.split("."))

    def apply(manifest: Any) -> None:
        reduce(getitem, steps, manifest)[last] = to

    return apply


LENS, TURN = "cameras.0.intrinsics.ftheta", "cameras.0.pose_in_rig.rotation_xyzw"
BROKEN: list[tuple[Callable[[Any], object], str]] = [
    (change("format", "x"), 'format: expected one of lumigrad.drive, got "x"'),
    (change("version", 2), "version: expected a whole number from 1 to 1, got 2"),
    (change("scene_id", ""), 'scene_id: expected a text, got ""'),
    (change("track", []), "track: unknown key; did you mean tracks?"),
    (change(f"{LENS}.max_angel", 1.0), "cameras[0].intrinsics.ftheta.max_angel: unknown key; did you mean max_angle?"),
    (change("cameras.1.shutter_type", None), "cameras[1].shutter_type: expected a value"),
    (change("cameras.0.shutter_type", "ROLLING"), "cameras[0].shutter_type: expected one of"),
    (change("gaussians.0.file", "gone.ply"), "gaussians[0].file: expected a file that exists"),
    (change("gaussians.0.file", "../x.ply"), "gaussians[0].file: expected a file inside the scene's folder"),
    (change("tracks.0.gaussians", "/etc/passwd"), "tracks[0].gaussians: expected a file in"),
    (
        change(TURN, [0, 0, 0, 0.9]),
        "cameras[0].pose_in_rig.rotation_xyzw: expected a quaternion x y z w of length 1",
    ),
    (change("trajectories.0.poses.1", [0] * 6), "trajectories[0].poses[1]: expected 7 numbers, got 6"),
    (change("tracks.0.timestamps_us", [5, 5]), "tracks[0].timestamps_us: expected at least one time, and each later"),
    (change("tracks.0.timestamps_us", [1, 2, 3]), "tracks[0].poses: expected 3 poses"),
    (change("gaussians.0.scale", 0), "gaussians[0].scale: expected a finite number"),
    (change("cameras.0.intrinsics.opencv_pinhole", {}), "cameras[0].intrinsics: expected the parameters of the model,"),
    (
        change(f"{LENS}.pixeldist_to_angle", [0] * 7),
        "cameras[0].intrinsics.ftheta.pixeldist_to_angle: expected 0 to 6",
    ),
    (
        change("cameras.1.intrinsics.opencv_pinhole.focal_length", [1, -1]),
        "cameras[1].intrinsics.opencv_pinhole.focal_length: expected two focal lengths above 0",
    ),
    (change("cameras.0.resolution_hw", [0, 5]), "cameras[0].resolution_hw[0]: expected a whole number from 1 to"),
    (
        change(f"{LENS}.pixeldist_to_angle", [0, 0]),
        "cameras[0].intrinsics.ftheta.pixeldist_to_angle: expected the reference polynomial to rise at 0",
    ),
    (
        lambda m: m["cameras"][0]["intrinsics"]["ftheta"].update(
            reference_poly="angle_to_pixel", angle_to_pixeldist=None
        ),
        "cameras[0].intrinsics.ftheta.angle_to_pixeldist: expected the reference polynomial to rise at 0",
    ),
    (change("background", [255, 0, 0]), "background: expected three channels from 0 to 1, got [255, 0, 0]"),
    (change("background", ["0", 0, 0]), "background[0]: expected a finite number"),
    (change("time_range_us", [2, 1]), "time_range_us: expected the first and the last time"),
    (lambda m: m.update(gaussians=[], tracks=[]), "gaussians: expected at least one file, or a track"),
    (
        lambda m: m["cameras"].append(m["cameras"][0]),
        "cameras[3].logical_id: expected each once, got camera_front",
    ),
    (lambda m: m["tracks"].append(m["tracks"][0]), "tracks[1].track_id: expected each once, got car again"),
]


@pytest.mark.parametrize(("spoil", "message"), BROKEN, ids=[message for _, message in BROKEN])
def test_broken_manifests_are_refused_with_file_field_and_reason(
    place: Street, spoil: Callable[[Any], object], message: str
) -> None:
    manifest = copy.deepcopy(place.manifest)
    spoil(manifest)
    assert_refused(place, json.dumps(manifest), message)


def assert_refused(place: Street, text: str, message: str) -> None:
    place.file.write_text(text)
    with pytest.raises(ManifestError) as refused:
        read_manifests(place.folder)
    assert str(refused.value).startswith(f"{place.file}: {message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Expecting property name"),
        ('{"format": 1, "format": 2}', "format: expected each key once in an object, got it twice"),
        ('{"scale": NaN}', "expected finite numbers, got NaN"),
        ("[" * 100_000, "expected values that are nested less deeply"),
        ("[]", "expected an object, got []"),
    ],
)
def test_files_that_are_no_manifests_are_refused(place: Street, text: str, message: str) -> None:
    assert_refused(place, text, message)


def test_a_byte_order_mark_is_skipped(place: Street) -> None:
    place.file.write_bytes(b"\xef\xbb\xbf" + place.file.read_bytes())
    (scene,) = read_manifests(place.folder)
    assert scene.scene_id == SCENE


def test_links_out_of_the_folder_are_refused(place: Street, tmp_path: Path) -> None:
    (tmp_path / "secret.ply").write_bytes(b"ply")
    (place.file.parent / "link.ply").symlink_to(tmp_path / "secret.ply")
    place.write(gaussians=[{"file": "link.ply"}])
    with pytest.raises(ManifestError, match="and links out of it"):
        read_manifests(place.folder)


def test_folders_need_scenes_with_different_names(place: Street, tmp_path: Path) -> None:
    (alone,) = read_manifests(tmp_path / SCENE)
    assert alone.scene_id == SCENE
    (tmp_path / "empty").mkdir()
    with pytest.raises(ManifestError, match="a folder for each scene with a scene"):
        read_manifests(tmp_path / "empty")
    with pytest.raises(ManifestError, match="expected a folder with a folder for each scene"):
        read_manifests(tmp_path / "nowhere")
    other = street(tmp_path / "b", "other")
    other.write(scene_id=SCENE)
    (tmp_path / "b" / "other").rename(tmp_path / "other")
    with pytest.raises(ManifestError, match="scene_id: expected another than that of"):
        read_manifests(tmp_path)


def test_motions_are_straight_and_turn_the_short_way() -> None:
    random = np.random.default_rng(3)
    quats = random.normal(size=(4, 4))
    quats /= np.linalg.norm(quats, axis=1, keepdims=True)
    times, positions = (10, 20, 50, 60), random.normal(size=(4, 3))
    motion = Motion(times, tuple(map(RigidPose, positions, quats)))
    slerp = Slerp(times, Rotation.from_quat(np.roll(quats, -1, axis=1)))
    for time in (10, 13, 20, 37, 59, 60):
        pose = motion.at(time)
        np.testing.assert_allclose(pose.rotation, slerp(time).as_matrix(), atol=1e-12)
        np.testing.assert_allclose(pose.position, [np.interp(time, times, axis) for axis in positions.T], atol=1e-12)
    assert [motion.covers(time) for time in (9, 10, 60, 61)] == [False, True, True, False]
    np.testing.assert_array_equal(motion.at(0).position, positions[0])
    np.testing.assert_array_equal(motion.at(99).position, positions[3])
    message = motion.poses[0].message()
    assert message.quat.w == np.float32(quats[0, 0])


def test_quaternions_may_differ_from_length_1_by_a_percent() -> None:
    x, y, z, w = FORWARD
    unit = np.array([w, x, y, z])
    np.testing.assert_allclose(unit_quat(1.009 * unit), unit, atol=1e-12)
    assert unit_quat(0.98 * unit) is None
    assert unit_quat(unit * np.nan) is None
    assert unit_quat(np.zeros(4)) is None
