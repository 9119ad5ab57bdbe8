"""Data sets that are refused by errors that name the file and the field."""

from __future__ import annotations

import numpy as np
import pytest

from lumigrad.client import InvalidArgument
from lumigrad.client.datasets import Capture, Points
from support.files.dataset_files import FOCAL, SIZE, TOP, shots, transforms, write_colmap, write_json


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
