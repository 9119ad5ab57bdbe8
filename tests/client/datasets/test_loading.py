"""Data sets: the same views from the files of Inria, nerfstudio, Blender and Polycam, and what is refused."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lumigrad.client import InvalidArgument
from lumigrad.client.datasets import Capture, Points
from lumigrad.client.datasets.colmap_binary import read_cameras
from support.files.dataset_files import (
    FOCAL,
    SIZE,
    TOP,
    assert_same,
    shots,
    transforms,
    write_cameras_json,
    write_colmap,
    write_json,
)

DATA = os.environ.get("LUMIGRAD_TEST_DATA")


def test_cameras_json_of_inria(tmp_path):
    write_cameras_json(tmp_path / "cameras.json", shots(), *SIZE, FOCAL)
    assert_same(Capture.load(tmp_path / "cameras.json"))
    assert_same(Capture.load(tmp_path))


def test_cameras_json_with_principal_points(tmp_path):
    """Trainers that were made from Inria's write these."""
    write_cameras_json(tmp_path / "cameras.json", shots(2), *SIZE, FOCAL)
    entries = json.loads((tmp_path / "cameras.json").read_text())
    entries[1] |= {"cx": 300.0, "cy": 250.0}
    write_json(tmp_path / "cameras.json", entries)
    first, second = (view.camera.model for view in Capture.load(tmp_path).views)
    assert (first.cx, first.cy, second.cx, second.cy) == (320, 240, 300, 250)


def test_transforms_json_of_nerfstudio(tmp_path):
    assert_same(Capture.load(write_json(tmp_path / "other.json", transforms(shots(), **TOP))))
    write_json(tmp_path / "transforms.json", transforms(shots(), **TOP))
    assert_same(Capture.load(tmp_path))


def test_transforms_with_intrinsics_and_distortion_in_frames(tmp_path):
    values = transforms(shots(2), w=640, h=480, fl_x=300.0, k1=0.1)
    values["frames"][1] |= {"fl_x": 400.0, "fl_y": 410.0, "cx": 300.0, "k2": 0.2, "p1": 0.01, "p2": 0.02, "k3": 0.3}
    first, second = (view.camera.model for view in Capture.load(write_json(tmp_path / "t.json", values)).views)
    assert (first.fx, first.fy, first.cx, first.cy, first.distortion) == (300, 300, 320, 240, (0.1, 0, 0, 0))
    assert (second.fx, second.fy, second.cx) == (400, 410, 300)
    assert second.distortion == (0.1, 0.2, 0.01, 0.02, 0.3)


def test_full_opencv_lenses_have_their_denominator(tmp_path):
    top = {**TOP, "camera_model": "FULL_OPENCV", "k1": 0.1, "p2": 0.01, "k4": 0.02, "k6": 0.003}
    path = write_json(tmp_path / "transforms.json", transforms(shots(1), **top))
    assert Capture.load(path).views[0].camera.model.distortion == (0.1, 0, 0, 0.01, 0, 0.02, 0, 0.003)


def test_angles_of_view_are_those_of_width_and_height(tmp_path):
    angles = {"camera_angle_x": 2 * math.atan(0.5), "camera_angle_y": 2 * math.atan(0.25)}
    values = transforms(shots(1), w=80, h=60, **angles)
    model = Capture.load(write_json(tmp_path / "transforms.json", values)).views[0].camera.model
    assert (model.fx, model.fy) == pytest.approx((80, 120))


def test_calibrations_are_those_of_ncore(tmp_path):
    """An f-theta camera as NCore writes it, with the centre of the first pixel at 0."""
    parameters = {
        **{"resolution": [64, 48], "shutter_type": "GLOBAL", "principal_point": [31.5, 23.5]},
        **{"reference_poly": "PIXELDIST_TO_ANGLE", "pixeldist_to_angle_poly": [0, 0.02, 0, 0, 0, 0]},
        **{"angle_to_pixeldist_poly": [0, 50, 0, 0, 0, 0], "max_angle": 0.8, "linear_cde": [1, 0, 0]},
        "external_distortion_parameters": None,
    }
    top = {"camera_model_type": "ftheta", "camera_model_parameters": parameters}
    values = {**transforms(shots(2)), **top}
    for view in Capture.load(write_json(tmp_path / "t.json", values)).views:
        lens = view.camera.model.lens
        assert (lens.cx, lens.cy, lens.reference) == (32, 24, "pixel_distance_to_angle")
        assert lens.pixel_distance_to_angle[1] == 0.02
    for wrong, said in (
        ({"shutter_type": "ROLLING"}, r"camera_model_parameters\.shutter_type: expected one of GLOBAL"),
        ({"shutter_type": "ROLLING_TOP_TO_BOTTOM"}, "transform_matrix_end: expected finite numbers"),
        ({"reference_poly": "BOTH"}, "reference_poly: expected one of ANGLE_TO_PIXELDIST"),
        ({"resolution": [0, 1]}, "resolution: expected a width and a height"),
        ({"linear_cde": [1]}, "linear_cde: expected finite numbers"),
    ):
        values["camera_model_parameters"] = {**parameters, **wrong}
        with pytest.raises(InvalidArgument, match=said):
            Capture.load(write_json(tmp_path / "t.json", values))
    values["camera_model_type"] = "sphere"
    with pytest.raises(InvalidArgument, match="camera_model_type: expected one of ideal-pinhole"):
        Capture.load(write_json(tmp_path / "t.json", values))


def write_blender(folder: Path, name: str, taken: list) -> None:
    values = transforms(taken, **TOP)
    for k, frame in enumerate(values["frames"]):
        frame["file_path"] = f"./{name}/r_{k}"
    write_json(folder / f"transforms_{name}.json", values)


def test_blender_scenes_have_an_angle_and_photographs_without_suffix(tmp_path):
    (tmp_path / "images").mkdir()
    Image.new("RGB", (80, 60)).save(tmp_path / "images" / "photo_0.png")
    values = transforms(shots(1), camera_angle_x=2 * math.atan(0.5))
    values["frames"][0]["file_path"] = "./images/photo_0"
    view = Capture.load(write_json(tmp_path / "transforms_train.json", values)).views[0]
    assert (view.camera.width, view.camera.height) == (80, 60)
    assert view.camera.model.fx == pytest.approx(80)
    assert view.camera.model.fy == pytest.approx(80)
    assert view.image == tmp_path / "images" / "photo_0.png"


@pytest.mark.parametrize("held_out", ["test", "val"])
def test_of_blender_scenes_the_photographs_of_the_test_are_held_out(tmp_path, held_out):
    taken, others = shots(), shots(2, seed=1)
    write_blender(tmp_path, "train", taken)
    write_blender(tmp_path, held_out, others)
    # Without their photographs there is nothing to evaluate a fit with.
    assert [view.name for view in Capture.load(tmp_path).views] == [f"r_{k}" for k in range(5)]
    (tmp_path / held_out).mkdir()
    for k in range(2):
        Image.new("RGB", SIZE).save(tmp_path / held_out / f"r_{k}.png")
    if held_out == "test":
        write_blender(tmp_path, "val", shots(3, seed=2))
    capture = Capture.load(tmp_path)
    fitted, evaluated = [f"train/r_{k}" for k in range(5)], [f"{held_out}/r_{k}" for k in range(2)]
    assert [view.name for view in capture.views] == [*fitted, *evaluated]
    assert (capture.split.fitted, capture.split.held_out) == (set(fitted), set(evaluated))
    for view, shot in zip(capture.views, [*taken, *others], strict=True):
        np.testing.assert_allclose(view.camera.model.eye, shot.place, atol=1e-9)
    assert capture.view(f"{held_out}/r_1").image == tmp_path / held_out / "r_1.png"
    # A file that is named is read alone.
    assert len(Capture.load(tmp_path / "transforms_train.json")) == 5


@pytest.mark.parametrize("images", [None, "train"])
def test_without_photographs_of_the_test_blender_scenes_have_those_of_the_training(tmp_path, images):
    """Their files hold no sizes, and photographs of both have the same names below one folder."""
    (tmp_path / "train").mkdir()
    for k in range(5):
        Image.new("RGB", SIZE).save(tmp_path / "train" / f"r_{k}.png")
    for name in ("train", "test"):
        values = transforms(shots(), camera_angle_x=0.7)
        for k, frame in enumerate(values["frames"]):
            frame["file_path"] = f"./{name}/r_{k}"
        write_json(tmp_path / f"transforms_{name}.json", values)
    capture = Capture.load(tmp_path, images=images)
    assert [view.image for view in capture.views] == [tmp_path / "train" / f"r_{k}.png" for k in range(5)]
    assert capture.split is None


def write_polycam(folder: Path, taken: list) -> None:
    for frame in transforms(taken, **TOP)["frames"]:
        rows = {f"t_{i}{j}": frame["transform_matrix"][i][j] for i in range(3) for j in range(4)}
        lens = {"fx": 500, "fy": 510, "cx": 320, "cy": 240, "width": 640, "height": 480, "timestamp": 7}
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / f"{Path(frame['file_path']).stem}.json", {**rows, **lens})


def test_keyframes_of_polycam(tmp_path):
    write_polycam(tmp_path / "keyframes" / "cameras", shots(3, seed=1))
    assert_same(Capture.load(tmp_path), shots(3, seed=1))
    # Refined poses take precedence.
    write_polycam(tmp_path / "keyframes" / "corrected_cameras", shots())
    image = tmp_path / "keyframes" / "corrected_images" / "photo_2.jpg"
    image.parent.mkdir()
    image.write_bytes(b"")
    assert_same(Capture.load(tmp_path))
    assert_same(Capture.load(tmp_path / "keyframes"))
    assert [view.image for view in Capture.load(tmp_path).views] == [None, None, image, None, None]
    broken = tmp_path / "keyframes" / "corrected_cameras" / "photo_1.json"
    values = json.loads(broken.read_text())
    for change, complaint in (
        ({"t_11": 3}, "t_00 to t_22: expected an orthonormal"),
        ({"fx": -1}, "focal lengths"),
        ({"cx": None}, "cx: expected a finite"),
    ):
        write_json(broken, {**values, **change})
        with pytest.raises(InvalidArgument, match=complaint):
            Capture.load(tmp_path)


@pytest.mark.skipif(DATA is None, reason="set LUMIGRAD_TEST_DATA to the folder that holds scenes/capture_plush")
def test_a_capture_is_the_same_in_every_format():
    folder = Path(DATA or "", "scenes", "capture_plush")
    expected = np.load(folder / "cameras_opencv.npz")
    inria = Capture.load(folder / "cameras.json", images="images_8")
    nerfstudio = Capture.load(folder)
    # The pictures were scaled down by 8, which does not divide their sizes.
    for capture, scale in ((inria, 8.0), (nerfstudio, 1.0)):
        assert [view.name for view in capture.views] == expected["names"].tolist()
        for view, matrix in zip(capture.views, expected["viewmats"], strict=True):
            model = view.camera.model
            np.testing.assert_allclose(model.rotation, matrix[:3, :3], atol=1e-6)
            np.testing.assert_allclose(model.translation, matrix[:3, 3], atol=1e-5)
            seen = np.array([model.fx, model.fy, model.cx, model.cy]) / scale
            np.testing.assert_allclose(seen, expected["K"][[0, 1, 0, 1], [0, 1, 2, 2]], rtol=1e-5)
            assert view.image is not None
    assert (nerfstudio.views[0].camera.width, nerfstudio.views[0].camera.height) == (494, 371)
    assert len(nerfstudio.points) == 25784
    assert 0 < nerfstudio.points.colors.mean() < 1
    (lens,) = read_cameras(folder / "cameras.bin").values()
    assert (lens.model, lens.width, lens.height) == ("PINHOLE", 3958, 2968)
    assert lens.values["fx"] == pytest.approx(inria.views[0].camera.model.fx, rel=1e-5)
    assert capture.up @ (-0.050, -0.899, -0.434) > 0.9


def test_names_keep_folders_where_stems_repeat(tmp_path):
    taken = shots(3)
    taken[0].file, taken[1].file = "left/0.jpg", "right/0.jpg"
    write_colmap(tmp_path, taken, "PINHOLE", [*FOCAL, 320, 240], SIZE, binary=True)
    capture = Capture.load(tmp_path)
    assert [view.name for view in capture.views] == ["left/0", "photo_2", "right/0"]
    assert capture.view("right/0") is capture.view(2) is capture.view("-1") is capture.views[2]
    with pytest.raises(InvalidArgument, match=r"^view: expected an index below 3, or a name such as 'left/0' or"):
        capture.view("middle")


def test_resized_views_see_the_same(tmp_path):
    write_cameras_json(tmp_path / "cameras.json", shots(1), *SIZE, FOCAL)
    view = Capture.load(tmp_path).views[0].resized(320, 120)
    model = view.camera.model
    assert (view.camera.width, view.camera.height, model.fx, model.fy) == (320, 120, 250, 127.5)
    assert (model.cx, model.cy) == (160, 60)


def test_up_and_focus_of_cameras_that_look_at_one_point(tmp_path):
    write_cameras_json(tmp_path / "cameras.json", shots(9), *SIZE, FOCAL)
    capture = Capture.load(tmp_path)
    np.testing.assert_allclose(capture.focus, 0, atol=1e-6)
    assert capture.up @ (0, -1, 0) > 0.95


def changed(**top: object) -> dict[str, object]:
    return transforms(shots(1), **{**TOP, **top})


WRONG = [
    ({"frames": []}, r"frames: expected at least one frame"),
    ({"frames": [{}]}, r"frames\[0\]\.file_path: expected a text, got nothing"),
    ({"frames": [{"file_path": "a"}], **TOP}, r"frames\[0\]\.transform_matrix: expected finite numbers of shape"),
    (transforms(shots(1)), r"frames\[0\]\.w: expected w and h in pixels, or the photograph images/photo_0\.jpg"),
    (transforms(shots(1), w=640, fl_x=500), r"frames\[0\]\.h: expected w and h in pixels, or neither"),
    (transforms(shots(1), h=480, fl_x=500), r"frames\[0\]\.w: expected w and h in pixels, or neither"),
    (transforms(shots(1), w=1.5, h=2), r"frames\[0\]\.w: expected a whole number of pixels >= 1, got 1\.5"),
    (transforms(shots(1), w=1, h=2), r"frames\[0\]\.fl_x: expected a focal length in pixels, or camera_angle_x"),
    (changed(fl_x=-1), r"frames\[0\]\.fl_x: expected a focal length in pixels > 0"),
    (changed(cx="a"), r"frames\[0\]\.cx: expected a finite number, got 'a'"),
    (
        changed(camera_model="EQUIRECTANGULAR"),
        r"frames\[0\]\.camera_model: the camera model EQUIRECTANGULAR is not supported; expected SIMPLE_PINHOLE",
    ),
    (
        changed(camera_model="OPENCV", k4=0.1),
        r"frames\[0\]\.k4: expected 0 unless camera_model is a fisheye or FULL_OPENCV, got 0\.1",
    ),
    ([], r"expected a list of at least one camera, got list"),
    ([{"img_name": "a", "rotation": [[2, 0, 0], [0, 1, 0], [0, 0, 1]]}], r"\[0\]\.rotation: expected an orthonormal"),
    ([{"img_name": "a", "rotation": np.eye(3).tolist(), "fx": 1}], r"\[0\]\.fy: expected a finite number, got nothing"),
    (7, r'expected a list of cameras \(Inria\) or an object with "frames" \(nerfstudio\)'),
]


@pytest.mark.parametrize(("values", "said"), WRONG)
def test_errors_name_file_and_field(tmp_path, values, said):
    path = write_json(tmp_path / "views.json", values)
    with pytest.raises(InvalidArgument, match=r"^path: .*views\.json: " + said):
        Capture.load(path)


def test_what_is_no_data_set_is_refused(tmp_path):
    with pytest.raises(
        InvalidArgument,
        match=r"expected transforms\.json or transforms_train\.json, cameras\.json, images.*`lumigrad capture` finds",
    ):
        Capture.load(tmp_path)
    (tmp_path / "views.json").write_text("{")
    with pytest.raises(InvalidArgument, match=r"views\.json: expected a JSON file"):
        Capture.load(tmp_path / "views.json")
    with pytest.raises(FileNotFoundError):
        Capture.load(tmp_path / "absent.json")
    write_colmap(tmp_path / "sparse", shots(1), "PINHOLE", [*FOCAL, 320, 240], SIZE, binary=True)
    (tmp_path / "sparse" / "cameras.bin").unlink()
    with pytest.raises(InvalidArgument, match=r"expected a file cameras\.bin or cameras\.txt"):
        Capture.load(tmp_path)


def test_points_of_text_and_damaged_files(tmp_path):
    names = "".join(f"property float {name}\n" for name in ("x", "y", "z", "red", "green", "blue"))
    header = f"ply\nformat ascii 1.0\nelement vertex 1\n{names}end_header\n"
    (tmp_path / "points.ply").write_text(header + "1 2 3 0.1 0.2 0.3")
    read = Points.load(tmp_path / "points.ply")
    np.testing.assert_allclose(read.colors, [[0.1, 0.2, 0.3]], rtol=1e-6)
    (tmp_path / "points.ply").write_text("ply\nformat ascii 1.0\nelement vertex 1\nproperty float x\nend_header\n1")
    with pytest.raises(InvalidArgument, match=r"points\.ply: expected vertex properties x, y, z, got \['x'\]"):
        Points.load(tmp_path / "points.ply")
