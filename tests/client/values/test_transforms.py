"""transforms.json as other programs write it: fisheyes of instant-ngp, lists of photographs, unused fields."""

from __future__ import annotations

import json
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lumigrad.client import FisheyeLens, InvalidArgument
from lumigrad.client.datasets import Capture
from lumigrad.client.fitting.background import Background
from lumigrad.client.fitting.matching import Matched
from lumigrad.client.fitting.shot import Shot, divide
from support.files.dataset_files import shots, transforms

TOP = {"w": 64, "h": 48, "fl_x": 50.0}


def write(folder: Path, count: int = 4, frame: dict[str, Any] | None = None, **top: Any) -> Path:
    values = transforms(shots(count), **{**TOP, **top})
    for each in values["frames"]:
        each |= frame or {}
    (folder / "transforms.json").write_text(json.dumps(values))
    return folder


def write_images(folder: Path, count: int) -> None:
    (folder / "images").mkdir()
    for k in range(count):
        Image.new("RGB", (64, 48)).save(folder / "images" / f"photo_{k}.jpg")


@pytest.mark.parametrize("place", ["top", "frame"])
def test_fisheyes_of_instant_ngp_are_fisheyes(tmp_path: Path, place: str):
    said = {"is_fisheye": True, "k1": 0.05, "k2": -0.01, "k3": 0.002, "k4": -0.001}
    write(tmp_path, **(said if place == "top" else {"frame": said}), aabb_scale=4)
    lens = Capture.load(tmp_path).views[0].camera.model.lens
    assert lens == FisheyeLens(fx=50, fy=50, cx=32, cy=24, radial=(0.05, -0.01, 0.002, -0.001))
    write(tmp_path, is_fisheye=True)
    assert Capture.load(tmp_path).views[0].camera.model.projection == "fisheye"
    write(tmp_path, is_fisheye=0, k1=0.1)
    assert Capture.load(tmp_path).views[0].camera.model.projection == "pinhole"


@pytest.mark.parametrize(
    ("top", "said"),
    [
        (
            {"is_fisheye": True, "camera_model": "OPENCV"},
            "is_fisheye: expected what camera_model says, OPENCV, got True",
        ),
        (
            {"is_fisheye": False, "camera_model": "FISHEYE"},
            "is_fisheye: expected what camera_model says, FISHEYE, got F",
        ),
        ({"is_fisheye": "yes"}, "is_fisheye: expected true or false, got 'yes'"),
        ({"ftheta_p0": 0.1}, "ftheta_p0: expected a pinhole or a fisheye of OpenCV; undistort"),
        ({"latlong": True}, "latlong: expected a pinhole"),
        ({"cx": 0.5, "cy": 0.5}, "cx: expected pixels, not a fraction of 64, got 0.5"),
        ({"k5": 0.1}, "k5: expected 0 for this camera_model, got 0.1"),
        ({"k6": 0.1, "camera_model": "OPENCV_FISHEYE"}, "k6: expected 0 for this camera_model"),
        (
            {"sx1": 0.1, "camera_model": "THIN_PRISM_FISHEYE"},
            "camera_model: THIN_PRISM_FISHEYE is supported without p1",
        ),
    ],
)
def test_lenses_that_are_not_those_of_the_file_are_refused(tmp_path: Path, top: dict[str, Any], said: str):
    with pytest.raises(InvalidArgument, match=rf"transforms\.json: frames\[0\]\.{said}"):
        Capture.load(write(tmp_path, **top))


def test_one_focal_length_is_not_that_of_photographs_of_several_sizes(tmp_path: Path) -> None:
    write_images(tmp_path, 3)
    sizes = {0: (64, 48), 1: (48, 64), 2: (64, 48)}

    def take(own: dict[str, Any] | None = None, **top: Any) -> list[tuple[float, int]]:
        for k, size in sizes.items():
            Image.new("RGB", size).save(tmp_path / "images" / f"photo_{k}.jpg")
        write(tmp_path, 3, w=None, h=None, **top)
        if own is not None:
            values = json.loads((tmp_path / "transforms.json").read_text())
            values["frames"][2] |= own
            (tmp_path / "transforms.json").write_text(json.dumps(values))
        return [(view.camera.model.fx, view.camera.width) for view in Capture.load(tmp_path).views]

    # A camera that was turned has the same focal length in pixels.
    assert take() == [(50, 64), (50, 48), (50, 64)]
    sizes[2] = (128, 96)
    photographs = "images/photo_0.jpg has 64 x 48 pixels, images/photo_2.jpg 128 x 96"
    with pytest.raises(InvalidArgument, match=rf"fl_x: expected photographs of one size, w and h .*\({photographs}\)"):
        take()
    assert take({"fl_x": 100.0})[2] == (100, 128)
    assert take({"w": 128, "h": 96})[2] == (50, 128)
    assert take(fl_x=None, camera_angle_x=1.0)[2][1] == 128


def test_fields_without_use_are_named_together(tmp_path: Path):
    top = {"skew": 0.5, "applied_scale": 0.5, "b2": 0, "aabb_scale": 16, "some_list": [0, 0.0]}
    write(tmp_path, frame={"b1": 3.0, "b2": 0.0, "sharpness": 9.0, "depth_file_path": "d.png"}, **top)
    with pytest.warns(UserWarning) as told:
        Capture.load(tmp_path)
    path = tmp_path / "transforms.json"
    said = f"{path}: fields that are ignored: skew, applied_scale, b1, depth_file_path"
    assert [str(each.message) for each in told] == [said]
    with pytest.warns(UserWarning, match=r"ignored: k1, p2$"):
        Capture.load(write(tmp_path, camera_model="PINHOLE", k1=0.1, k2=0.0, p2=0.01))
    with pytest.warns(UserWarning, match=r"ignored: transform_matrix_end$"):
        Capture.load(write(tmp_path, frame={"transform_matrix_end": np.eye(4).tolist()}))


@pytest.mark.filterwarnings("error")
def test_usual_fields_are_not_worth_a_word(tmp_path: Path):
    usual = {"aabb_scale": 16, "scale": 0.33, "offset": [0.5, 0.5, 0.5], "k1": 0.1, "camera_angle_x": 0.7, "skew": 0}
    assert (
        len(Capture.load(write(tmp_path, frame={"sharpness": 30.1, "colmap_im_id": 3, "rotation": 0.1}, **usual))) == 4
    )


def test_a_scaled_rotation_is_named_with_its_scale(tmp_path: Path):
    values = transforms(shots(1), **TOP)
    matrix = np.array(values["frames"][0]["transform_matrix"])
    matrix[:3, :3] *= 1.5
    values["frames"][0]["transform_matrix"] = matrix.tolist()
    (tmp_path / "transforms.json").write_text(json.dumps(values))
    said = (
        r"frames\[0\]\.transform_matrix: expected an orthonormal rotation of determinant 1, got one times 1\.5; divide"
    )
    with pytest.raises(InvalidArgument, match=said):
        Capture.load(tmp_path)


def names(of: list[Shot]) -> list[str]:
    return [shot.name.removeprefix("photo_") for shot in of]


@pytest.mark.parametrize(
    ("lists", "fitted", "held_out"),
    [
        ({"train": "0123", "val": "4", "test": "56"}, "0123", "456"),
        ({"train": "0123"}, "0123", "4567"),
        ({"test": "07"}, "123456", "07"),
        ({"train": "01", "test": "67"}, "01", "67"),
        ({"train": "01234567", "test": "01234567"}, "01234567", "01234567"),
        ({"train": "01234567"}, "01234567", "01234567"),
    ],
)
def test_what_a_data_set_holds_out_is_held_out(tmp_path: Path, lists: dict[str, str], fitted: str, held_out: str):
    write_images(tmp_path, 8)
    # Programs on Windows write paths like these.
    files = {f"{name}_filenames": [f".\\images\\photo_{k}.jpg" for k in which] for name, which in lists.items()}
    both = set(lists.get("train", "")) & set(lists.get("test", ""))
    told = pytest.warns(UserWarning, match=r"train_filenames and test_filenames both name photo_0, ")
    with told if both else nullcontext():
        capture = Capture.load(write(tmp_path, 8, **files))
    found = [Shot.of(Matched.of(view), 64, Background()) for view in capture.views]
    assert ["".join(names(part)) for part in divide(found, None, capture.split)] == [fitted, held_out]
    assert ["".join(names(part)) for part in divide(found, 4, capture.split)] == ["123567", "04"]
    # The split is kept when cameras are moved and saved.
    capture.moved((1, 2, 3)).save(tmp_path / "again")
    again = Capture.load(tmp_path / "again").split
    assert again == capture.split


def test_photographs_that_are_fitted_and_held_out_are_named(tmp_path: Path) -> None:
    write_images(tmp_path, 4)
    files = [f"images/photo_{k}.jpg" for k in range(4)]
    with pytest.warns(UserWarning) as told:
        Capture.load(write(tmp_path, train_filenames=files[:3], val_filenames=files[2:], test_filenames=files[3:]))
    (said,) = [str(each.message) for each in told]
    text = (
        "train_filenames and val_filenames both name photo_2: scores of a fit will be those of photographs that it was"
    )
    assert said.endswith(f"transforms.json: {text} fitted to")
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Capture.load(write(tmp_path, train_filenames=files[:3], val_filenames=files[3:], test_filenames=files[3:]))


def test_lists_that_name_no_frame_or_leave_none_are_refused(tmp_path: Path):
    write_images(tmp_path, 4)
    for wrong in (["images/photo_9.jpg"], [3], "images"):
        with pytest.raises(InvalidArgument, match=r"test_filenames: expected a list"):
            Capture.load(write(tmp_path, test_filenames=wrong))
    capture = Capture.load(write(tmp_path, test_filenames=[f"images/photo_{k}.jpg" for k in range(4)]))
    found = [Shot.of(Matched.of(view), 64, Background()) for view in capture.views]
    with pytest.raises(InvalidArgument, match=r"dataset: expected photographs to fit, .*--hold-out N"):
        divide(found, None, capture.split)
    assert names(divide(found, None)[1]) == ["0"]
