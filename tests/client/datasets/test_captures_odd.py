"""Captures as other programs and text editors leave them: what would be read wrongly is refused, and named."""

from __future__ import annotations

import json
import struct
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from lumigrad.client import InvalidArgument, Spheres
from lumigrad.client.datasets import Capture
from lumigrad.client.formats.points_ply import save_spheres

COUNT = 6
CAMERAS = "1 PINHOLE 64 48 60 61 32 24\n"


def image_lines(points: str | None) -> str:
    """Lines of images.txt, each followed by a line of points unless `points` is None."""
    lines = [f"{i + 1} 1 0 0 0 {i / 10} 0 3 1 a{i}.png\n" for i in range(COUNT)]
    return "".join(line if points is None else f"{line}{points}\n" for line in lines)


def write_texts(folder: Path, images: str) -> Path:
    (folder / "cameras.txt").write_text(CAMERAS)
    (folder / "images.txt").write_text(images)
    return folder


@pytest.mark.parametrize("points", ["", "1.5 2 -1", "1 1 0 0 0 0 3 1 7 8 9 10", " ".join(["1.25 2.5 17"] * 500)])
def test_each_image_of_a_text_is_read_whatever_its_points(points: str, tmp_path: Path) -> None:
    assert len(Capture.load(write_texts(tmp_path, image_lines(points))).views) == COUNT


@pytest.mark.parametrize("renamed", ["a{}.png", "{}", "my photo {}.png", "photo {}"])
def test_a_text_without_lines_of_points_does_not_lose_every_second_image(renamed: str, tmp_path: Path) -> None:
    lines = image_lines(None)
    for i in range(COUNT):
        lines = lines.replace(f"a{i}.png", renamed.format(i))
    with pytest.raises(InvalidArgument, match=r"images\.txt: line 2: expected the points of the image above"):
        Capture.load(write_texts(tmp_path, lines))


@pytest.mark.parametrize("name", ["cameras", "images", "points3D"])
def test_records_beyond_the_count_of_a_binary_are_not_dropped(name: str, tmp_path: Path) -> None:
    camera = struct.pack("<iiQQ4d", 1, 1, 64, 48, 60, 61, 32, 24)
    images = [struct.pack("<i7di", i, 1, 0, 0, 0, i, 0, 3, 1) + b"a%d.png\0" % i + bytes(8) for i in range(COUNT)]
    points = [struct.pack("<Q3d3BdQ", i, i, 0, 0, 1, 2, 3, 0.5, 0) for i in range(COUNT)]
    for file, records in (("cameras", [camera]), ("images", images), ("points3D", points)):
        said = len(records) - (file == name)
        (tmp_path / f"{file}.bin").write_bytes(struct.pack("<Q", said) + b"".join(records))
    with pytest.raises(InvalidArgument, match=rf"{name}\.bin: expected the end of the file at byte .* behind its"):
        Capture.load(tmp_path)


@pytest.mark.parametrize("binary", [True, False])
def test_of_two_cameras_with_one_id_none_is_chosen(binary: bool, tmp_path: Path) -> None:
    write_texts(tmp_path, image_lines(""))
    if binary:
        cameras = [struct.pack("<iiQQ4d", 1, 1, 64, 48, focal, 61, 32, 24) for focal in (60, 90)]
        (tmp_path / "cameras.bin").write_bytes(struct.pack("<Q", 2) + b"".join(cameras))
    else:
        (tmp_path / "cameras.txt").write_text(CAMERAS + CAMERAS.replace("60", "90"))
    text = r"cameras\.(bin|txt): .*expected each camera once, got a second one with the id 1"
    with pytest.raises(InvalidArgument, match=text):
        Capture.load(tmp_path)


def write_transforms(folder: Path, matrices: list[np.ndarray], **more: object) -> Path:
    top = {"w": 64, "h": 48, "fl_x": 60, "camera_model": "PINHOLE"}
    frames = [{"file_path": f"a{i}.png", "transform_matrix": m.tolist(), **more} for i, m in enumerate(matrices)]
    (folder / "transforms.json").write_text(json.dumps({**top, "frames": frames}))
    return folder


def test_matrices_for_row_vectors_are_refused(tmp_path: Path) -> None:
    placed = np.eye(4)
    placed[:3, 3] = 1, 2, 3
    assert np.allclose(Capture.load(write_transforms(tmp_path, [placed])).views[0].camera.position, placed[:3, 3])
    # Transposed, as programs with row vectors write it: all cameras would be at the origin.
    text = r"frames\[0\]\.transform_matrix: expected the last row 0 0 0 1, got \[1.0, 2.0, 3.0, 1.0\]; transpose"
    with pytest.raises(InvalidArgument, match=text):
        Capture.load(write_transforms(tmp_path, [placed.T]))


def test_the_angle_of_a_frame_overrides_the_focal_length_of_all(tmp_path: Path) -> None:
    angles = {"camera_angle_x": 1.0, "camera_angle_y": 0.8}
    model = Capture.load(write_transforms(tmp_path, [np.eye(4)], **angles)).views[0].camera.model
    assert (model.fx, model.fy) == pytest.approx((32 / np.tan(0.5), 24 / np.tan(0.4)))


def looking(eye: np.ndarray) -> np.ndarray:
    """The matrix camera to world, with OpenGL's axes, of a camera that looks at the origin."""
    back = eye / np.linalg.norm(eye)
    right = np.cross((0, 0, 1), back)
    right /= np.linalg.norm(right)
    matrix = np.eye(4)
    matrix[:3] = np.stack([right, np.cross(back, right), back, eye], axis=1)
    return matrix


RING = [looking(np.array([4 * np.cos(a), 4 * np.sin(a), 1.0 + a % 1])) for a in np.linspace(0, 6, 12)]
FLIPPED = np.diag([1.0, -1.0, -1.0, 1.0])


def write_ring(folder: Path, form: str, poses: Sequence[np.ndarray], focal: float = 60.0) -> Path:
    """A data set of views around 200 points; `poses` are camera to world, with OpenGL's axes."""
    places = np.random.default_rng(0).uniform(-0.5, 0.5, (200, 3))
    if form == "transforms":
        save_spheres(Spheres(places, np.full((200, 3), 0.5), np.full(200, 0.1)), folder / "points.ply")
        frames = [{"file_path": f"{k}.png", "transform_matrix": pose.tolist()} for k, pose in enumerate(poses)]
        top = {"w": 64, "h": 48, "fl_x": focal, "cx": 32, "cy": 24, "ply_file_path": "points.ply", "frames": frames}
        (folder / "transforms.json").write_text(json.dumps(top))
        return folder
    lines = []
    for k, pose in enumerate(poses):
        inverse = np.linalg.inv(pose @ FLIPPED)
        quat, place = Rotation.from_matrix(inverse[:3, :3]).as_quat()[[3, 0, 1, 2]], inverse[:3, 3]
        lines += [f"{k + 1} {' '.join(map(str, (*quat, *place)))} 1 {k}.png", ""]
    (folder / "cameras.txt").write_text(f"1 SIMPLE_PINHOLE 64 48 {focal} 32 24\n")
    (folder / "images.txt").write_text("\n".join([*lines, ""]))
    rows = [f"{k} {' '.join(map(str, place))} 9 9 9 0" for k, place in enumerate(places)]
    (folder / "points3D.txt").write_text("\n".join(rows))
    return folder


@pytest.mark.parametrize("form", ["transforms", "colmap"])
@pytest.mark.parametrize("wrong", ["axes", "inverse"])
def test_cameras_that_look_away_from_all_points_are_told(form: str, wrong: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Capture.load(write_ring(tmp_path, form, RING))
    poses = [pose @ FLIPPED if wrong == "axes" else np.linalg.inv(pose) for pose in RING]
    with pytest.warns(UserWarning, match=r"1[12] of 12 cameras show none of its 200 points: .* camera to world with"):
        Capture.load(write_ring(tmp_path, form, poses))


@pytest.mark.parametrize("form", ["transforms", "colmap"])
@pytest.mark.parametrize("focal", [2.4, 0.9])
def test_focal_lengths_in_other_units_than_pixels_are_told(form: str, focal: float, tmp_path: Path) -> None:
    write_ring(tmp_path, form, RING, focal)
    said = rf"{tmp_path}: expected focal lengths in pixels, got {focal} for the picture 0, 64x48: .* millimetres or"
    with pytest.warns(UserWarning, match=said):
        Capture.load(tmp_path)


def test_cameras_at_one_place_are_not_too_fine_for_float32(tmp_path: Path) -> None:
    """Distances between such cameras are rounding errors, which are no extent."""
    places = np.array([3.0, 4.0, 5.0]) * (1 + 1e-15 * np.arange(5))[:, None]
    poses = [looking(place) for place in places]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Capture.load(write_ring(tmp_path, "transforms", poses))


def test_principal_points_outside_of_the_picture_are_told(tmp_path: Path) -> None:
    """Photographs were reduced, and their intrinsics were not."""
    write_ring(tmp_path, "transforms", RING)
    text = (tmp_path / "transforms.json").read_text()
    (tmp_path / "transforms.json").write_text(text.replace('"cx": 32, "cy": 24', '"cx": 128, "cy": 96'))
    said = rf"{tmp_path}: expected the principal point inside of the picture 0, 64x48, got 128, 96: .* another size"
    with pytest.warns(UserWarning, match=said):
        Capture.load(tmp_path)


@pytest.mark.parametrize(("times", "told"), [(100, "100"), (10**7, "9971097")])
@pytest.mark.parametrize("form", ["transforms", "colmap"])
def test_a_camera_far_from_all_others_is_told(form: str, times: int, told: str, tmp_path: Path) -> None:
    poses = [pose.copy() for pose in RING]
    poses[5][:3, 3] *= times
    said = f"camera of the picture 5 is {told} times as far from the middle as nine in ten are: .* if the pose is wrong"
    with pytest.warns(UserWarning, match=said):
        Capture.load(write_ring(tmp_path, form, poses))


@pytest.mark.parametrize("what", ["a tenth that waits elsewhere", "a street", "all but one at one place"])
def test_cameras_in_usual_places_are_not_told_of(what: str, tmp_path: Path) -> None:
    along = np.linspace(1.0, 300.0, 40)
    if what != "a street":
        along = np.full(40, 3.0)
        along[:: 9 if what.startswith("a tenth") else 40] = 30.0
    places = np.stack([along, np.full(40, 2.0), np.full(40, 1.0)], axis=1) * (1 + 1e-9 * np.arange(40))[:, None]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Capture.load(write_ring(tmp_path, "transforms", [looking(place) for place in places]))


@pytest.mark.parametrize("form", ["inria", "polycam"])
def test_distortions_of_pinholes_are_not_ignored_without_a_word(form: str, tmp_path: Path) -> None:
    lens = {"width": 64, "height": 48, "fx": 60, "fy": 60, "cx": 32, "cy": 24, "k1": -0.1, "k2": 0, "skew": 0.5}
    if form == "inria":
        entry = {"img_name": "a", "position": [0, 0, 0], "rotation": np.eye(3).tolist(), **lens}
        (tmp_path / "cameras.json").write_text(json.dumps([entry]))
    else:
        (tmp_path / "keyframes" / "cameras").mkdir(parents=True)
        pose = {f"t_{row}{column}": float(row == column) for row in range(3) for column in range(4)}
        for name in ("a", "b"):
            (tmp_path / "keyframes" / "cameras" / f"{name}.json").write_text(json.dumps({**lens, **pose}))
    said = r"cameras(\.json)?: fields of lenses that are ignored: k1, skew; undistort the"
    with pytest.warns(UserWarning, match=said) as told:
        Capture.load(tmp_path)
    assert len(told) == 1


def test_of_two_values_of_one_field_none_is_chosen(tmp_path: Path) -> None:
    write_ring(tmp_path, "transforms", RING)
    text = (tmp_path / "transforms.json").read_text()
    (tmp_path / "transforms.json").write_text(text.replace('"cx": 32', '"cx": 32, "cx": 32'))
    Capture.load(tmp_path)
    (tmp_path / "transforms.json").write_text(text.replace('"cx": 32', '"cx": 32, "cx": 12'))
    said = r"transforms\.json: expected each field once, got 'cx' as 32 and 12; remove the wrong one$"
    with pytest.raises(InvalidArgument, match=said):
        Capture.load(tmp_path)


def test_colours_of_points_in_text_are_levels_or_fractions(tmp_path: Path) -> None:
    write_ring(tmp_path, "colmap", RING)
    text = (tmp_path / "points3D.txt").read_text()
    for written, expected in {
        "255 0 51": (1, 0, 0.2),
        "1.0 0.0 0.2": (1, 0, 0.2),
        "1 0 1": (1 / 255, 0, 1 / 255),
    }.items():
        (tmp_path / "points3D.txt").write_text(text.replace(" 9 9 9 ", f" {written} "))
        points = Capture.load(tmp_path).points
        assert points is not None
        np.testing.assert_allclose(points.colors[0], expected, atol=1e-7)
    for wrong in ("300 0 0", "-1 0 0", "nan 0 0"):
        (tmp_path / "points3D.txt").write_text(text.replace(" 9 9 9 ", f" {wrong} ", 1))
        with pytest.raises(InvalidArgument, match=r"points3D\.txt: line 1: expected R G B from 0 to 255, got"):
            Capture.load(tmp_path)
