"""Data sets: the same views from every program's files, and errors that name the file and the field."""

from __future__ import annotations

import json
import math
import os
import struct
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from lumigrad.client import Camera, FisheyeLens, FThetaLens, InvalidArgument, OrthographicLens, PinholeLens, Windshield
from lumigrad.client.datasets import Capture, Points, View
from lumigrad.client.datasets.colmap_binary import read_cameras
from lumigrad.client.datasets.view import Split
from lumigrad.client.values.rotations import axis_angle_rotation
from support.files.dataset_files import shots, transforms, write_cameras_json, write_colmap

DATA = os.environ.get("LUMIGRAD_TEST_DATA")
SIZE, FOCAL = (640, 480), (500.0, 510.0)
TOP = {"camera_model": "PINHOLE", "w": 640, "h": 480, "fl_x": 500, "fl_y": 510, "cx": 320, "cy": 240}


def assert_same(capture: Capture, taken=None):
    taken = shots() if taken is None else taken
    assert [view.name for view in capture.views] == [Path(shot.file).stem for shot in taken]
    for view, shot in zip(capture.views, taken, strict=True):
        model = view.camera.model
        np.testing.assert_allclose(model.rotation, shot.axes.T, atol=1e-9)
        np.testing.assert_allclose(model.eye, shot.place, atol=1e-9)
        assert (view.camera.width, view.camera.height) == SIZE
        assert (model.fx, model.fy, model.cx, model.cy) == (*FOCAL, 320, 240)


def write(path: Path, values: object) -> Path:
    path.write_text(json.dumps(values))
    return path


def test_cameras_json_of_inria(tmp_path):
    write_cameras_json(tmp_path / "cameras.json", shots(), *SIZE, FOCAL)
    assert_same(Capture.load(tmp_path / "cameras.json"))
    assert_same(Capture.load(tmp_path))


def test_cameras_json_with_principal_points(tmp_path):
    """Trainers that were made from Inria's write these."""
    write_cameras_json(tmp_path / "cameras.json", shots(2), *SIZE, FOCAL)
    entries = json.loads((tmp_path / "cameras.json").read_text())
    entries[1] |= {"cx": 300.0, "cy": 250.0}
    write(tmp_path / "cameras.json", entries)
    first, second = (view.camera.model for view in Capture.load(tmp_path).views)
    assert (first.cx, first.cy, second.cx, second.cy) == (320, 240, 300, 250)


def test_transforms_json_of_nerfstudio(tmp_path):
    assert_same(Capture.load(write(tmp_path / "other.json", transforms(shots(), **TOP))))
    write(tmp_path / "transforms.json", transforms(shots(), **TOP))
    assert_same(Capture.load(tmp_path))


@pytest.mark.parametrize("form", ["nerfstudio", "colmap"])
def test_what_is_saved_is_what_is_loaded(form, tmp_path):
    images = tmp_path / "set" / "images"
    images.mkdir(parents=True)
    for shot in shots():
        (images / Path(shot.file).name).write_bytes(b"")
    lens = {"k1": -0.2, "k2": 0.05, "p1": 0.001, "p2": -0.002, "k3": 0.01}
    source = write(tmp_path / "set" / "other.json", transforms(shots(), **{**TOP, "camera_model": "OPENCV", **lens}))
    capture = Capture.load(source, images="images")
    points = Points([[0, 1, 2], [3, 4, 5.5]], [[1, 0, 0.2], [0, 1, 0.4]])
    Capture(capture.views, points).save(tmp_path / "set", form=form)
    again = Capture.load(tmp_path / "set")
    assert_same(again)
    for before, after in zip(capture.views, again.views, strict=True):
        assert after.image == before.image is not None
        assert after.camera.model.distortion == before.camera.model.distortion == tuple(lens.values())
    assert again.points is not None
    np.testing.assert_allclose(again.points.positions, points.positions)
    np.testing.assert_allclose(again.points.colors, points.colors, atol=1e-6)


@pytest.mark.parametrize("form", ["nerfstudio", "colmap"])
def test_photographs_elsewhere_are_found_from_a_new_folder(form, tmp_path):
    (tmp_path / "set" / "images").mkdir(parents=True)
    for shot in shots():
        (tmp_path / "set" / "images" / Path(shot.file).name).write_bytes(b"")
    write(tmp_path / "set" / "transforms.json", transforms(shots(), **TOP))
    capture = Capture.load(tmp_path / "set")
    capture.save(tmp_path / "new" / "deep", form=form)
    again = Capture.load(tmp_path / "new" / "deep")
    assert [view.image.resolve() for view in again.views] == [view.image for view in capture.views]


def test_masks_of_colmap_have_the_names_of_photographs_and_png(tmp_path):
    write_colmap(tmp_path / "sparse" / "0", shots(2), "PINHOLE", [*FOCAL, 320, 240], SIZE, binary=True)
    (tmp_path / "masks").mkdir()
    (tmp_path / "masks" / "photo_1.jpg.png").write_bytes(b"")
    with pytest.warns(UserWarning, match="1 of 2 photographs has no mask"):
        first, second = Capture.load(tmp_path).views
    assert first.mask is None and second.mask == tmp_path / "masks" / "photo_1.jpg.png"


def test_full_opencv_lenses_have_their_denominator(tmp_path):
    top = {**TOP, "camera_model": "FULL_OPENCV", "k1": 0.1, "p2": 0.01, "k4": 0.02, "k6": 0.003}
    path = write(tmp_path / "transforms.json", transforms(shots(1), **top))
    assert Capture.load(path).views[0].camera.model.distortion == (0.1, 0, 0, 0.01, 0, 0.02, 0, 0.003)


def test_fisheyes_are_saved_with_their_coefficients(tmp_path):
    top = {**TOP, "camera_model": "OPENCV_FISHEYE", "k1": 0.1, "k2": -0.02, "k3": 0.003, "k4": -0.0004}
    capture = Capture.load(write(tmp_path / "other.json", transforms(shots(), **top)), sensors=True)
    for form in ("nerfstudio", "colmap"):
        capture.save(tmp_path / form, form=form)
        (view, *_) = Capture.load(tmp_path / form, sensors=True).views
        assert isinstance(view.camera.model.lens, FisheyeLens)
        assert view.camera.model.lens.radial == (0.1, -0.02, 0.003, -0.0004)


def test_what_files_cannot_express_is_not_saved(tmp_path):
    eye = np.eye(3)
    rolling = {"shutter": "top_to_bottom", "end_rotation": eye, "end_translation": np.ones(3)}
    lens = PinholeLens(fx=300, fy=300, cx=160, cy=120, radial=(0.1, 0, 0, 0.01))
    cases = {
        "rolling": (Camera.sensor(lens, eye, np.zeros(3), 320, 240, **rolling), "colmap", "shutters"),
        "rational": (
            Camera.opencv(9, 9, 5, 5, eye, np.zeros(3), 10, 10, distortion=(0, 0, 0, 0, 0, 0.1, 0, 0)),
            *("nerfstudio", 'pass form="colmap"'),
        ),
        "parallel": (Camera.opencv(9, 9, 5, 5, eye, np.zeros(3), 10, 10, model="orthographic"), "colmap", "fisheye"),
    }
    for name, (camera, form, text) in cases.items():
        with pytest.raises(InvalidArgument, match=f"'{name}' cannot be saved.*{text}"):
            Capture((View(name, camera),)).save(tmp_path, form=form)
    behind = Camera.sensor(FisheyeLens(fx=9, fy=9, cx=5, cy=5, behind=True), eye, np.zeros(3), 10, 10)
    with pytest.raises(InvalidArgument, match="max_angle: expected an angle, by which files tell"):
        Capture((View("behind", behind),)).save(tmp_path)
    with pytest.raises(InvalidArgument, match=r"form.*\"nerfstudio\", \"colmap\", got 'ply'"):
        Capture((View("parallel", cases["parallel"][0]),)).save(tmp_path, form="ply")


def test_what_colmaps_files_have_no_place_for_is_told(tmp_path):
    (view,) = Capture.load(write(tmp_path / "a.json", transforms(shots(1), **TOP))).views
    masked = Capture((view, replace(view, name="b", mask=tmp_path / "b.png")))
    text = r"views: files of COLMAP name no masks: those of 1 of 2 views are left out; keep them in masks/, .*\.png"
    with pytest.warns(UserWarning, match=text) as told:
        masked.save(tmp_path / "colmap", form="colmap")
    assert told[0].filename == __file__
    split = Capture((view,), split=Split(fitted=frozenset({view.name}), held_out=frozenset()))
    with pytest.warns(UserWarning, match="split: files of COLMAP do not say what is held out; it is left out"):
        split.save(tmp_path / "colmap", form="colmap")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        masked.save(tmp_path / "nerfstudio")
        Capture((view,)).save(tmp_path / "colmap", form="colmap")


@pytest.mark.parametrize("name", ["two\nlines", " before", "after ", "line\u2028separator", ""])
def test_a_name_that_no_line_of_colmap_holds_is_refused(tmp_path, name):
    (view,) = Capture.load(write(tmp_path / "a.json", transforms(shots(1), **TOP))).views
    with pytest.raises(InvalidArgument, match=r"^views: .* cannot be saved: expected a name that a line of text holds"):
        Capture((replace(view, name=name, image=None),)).save(tmp_path / "set", form="colmap")
    assert not (tmp_path / "set").exists()


def write_blender(folder: Path, name: str, taken: list) -> None:
    values = transforms(taken, **TOP)
    for k, frame in enumerate(values["frames"]):
        frame["file_path"] = f"./{name}/r_{k}"
    write(folder / f"transforms_{name}.json", values)


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
        write(tmp_path / f"transforms_{name}.json", values)
    capture = Capture.load(tmp_path, images=images)
    assert [view.image for view in capture.views] == [tmp_path / "train" / f"r_{k}.png" for k in range(5)]
    assert capture.split is None


def write_polycam(folder: Path, taken: list) -> None:
    for frame in transforms(taken, **TOP)["frames"]:
        rows = {f"t_{i}{j}": frame["transform_matrix"][i][j] for i in range(3) for j in range(4)}
        lens = {"fx": 500, "fy": 510, "cx": 320, "cy": 240, "width": 640, "height": 480, "timestamp": 7}
        folder.mkdir(parents=True, exist_ok=True)
        write(folder / f"{Path(frame['file_path']).stem}.json", {**rows, **lens})


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
        write(broken, {**values, **change})
        with pytest.raises(InvalidArgument, match=complaint):
            Capture.load(tmp_path)


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("place", ["sparse/0", "sparse", "", "colmap/sparse/0"])
def test_colmap(tmp_path, binary, place):
    write_colmap(tmp_path / place, shots(), "PINHOLE", [*FOCAL, 320, 240], SIZE, binary=binary)
    capture = Capture.load(tmp_path)
    assert_same(capture)
    np.testing.assert_allclose(capture.points.positions, [[0.5 * k, -k, 2] for k in range(7)])
    np.testing.assert_allclose(capture.points.colors, [[k / 25.5, 128 / 255, 1] for k in range(7)], atol=1e-7)


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize(
    ("model", "parameters", "focal", "distortion"),
    [
        ("SIMPLE_PINHOLE", [500, 320, 240], (500, 500), ()),
        ("SIMPLE_RADIAL", [500, 320, 240, 0.1], (500, 500), (0.1, 0, 0, 0)),
        ("SIMPLE_RADIAL", [500, 320, 240, 0], (500, 500), ()),
        ("RADIAL", [500, 320, 240, 0.1, -0.2], (500, 500), (0.1, -0.2, 0, 0)),
        ("OPENCV", [500, 510, 320, 240, 0.1, -0.2, 0.01, 0.02], (500, 510), (0.1, -0.2, 0.01, 0.02)),
        ("FULL_OPENCV", [500, 510, 320, 240, 1, 2, 3, 4, 5, 6, 0, 0], (500, 510), (1, 2, 3, 4, 5, 6, 0, 0)),
        ("OPENCV_FISHEYE", [500, 510, 320, 240, 0, 0, 0, 0], (500, 510), ()),
        ("SIMPLE_FISHEYE", [500, 320, 240], (500, 500), ()),
        ("FISHEYE", [500, 510, 320, 240], (500, 510), ()),
        ("SIMPLE_DIVISION", [500, 320, 240, 0], (500, 500), ()),
        ("DIVISION", [500, 510, 320, 240, 0], (500, 510), ()),
    ],
)
def test_camera_models_of_colmap(tmp_path, binary, model, parameters, focal, distortion):
    write_colmap(tmp_path, shots(1), model, parameters, SIZE, binary=binary)
    seen = Capture.load(tmp_path).views[0].camera.model
    assert (seen.fx, seen.fy, seen.cx, seen.cy, seen.distortion) == (*focal, 320, 240, distortion)
    assert seen.projection == ("fisheye" if model.endswith("FISHEYE") else "pinhole")


def test_cameras_may_be_sensors(tmp_path):
    write_colmap(tmp_path, shots(1), "OPENCV_FISHEYE", [500, 510, 320, 240, 0.1, -0.2, 0.03, 0.04], SIZE, binary=True)
    capture = Capture.load(tmp_path, sensors=True)
    seen = capture.views[0].camera.model
    assert seen.lens == FisheyeLens(fx=500, fy=510, cx=320, cy=240, radial=(0.1, -0.2, 0.03, 0.04))
    half = capture.views[0].resized(320, 240).camera
    assert half.width == 320 and half.model.lens == FisheyeLens(fx=250, fy=255, cx=160, cy=120, radial=seen.lens.radial)
    write_colmap(tmp_path, shots(1), "FULL_OPENCV", [500, 510, 320, 240, 1, 2, 3, 4, 5, 6, 0, 0], SIZE, binary=True)
    plain, sensor = (Capture.load(tmp_path, sensors=sensors) for sensors in (False, True))
    lens = sensor.views[0].camera.model.lens
    assert (lens.radial, lens.tangential) == ((1, 2, 5, 6), (3, 4))
    np.testing.assert_array_equal(sensor.views[0].camera.model.rotation, plain.views[0].camera.model.rotation)
    np.testing.assert_allclose(sensor.up, plain.up)


@pytest.mark.parametrize("binary", [True, False])
def test_camera_models_that_cannot_be_rendered_are_named(tmp_path, binary):
    refused = {
        "FOV": [500, 510, 320, 240, 0.5],
        "EUCM": [500, 510, 320, 240, 0.5, 1],
        "EQUIRECTANGULAR": [640, 480],
        "number 18": [],
    }
    for model, values in refused.items():
        write_colmap(tmp_path, shots(1), model, values, SIZE, binary=binary)
        said = rf"cameras\.(bin|txt): .*expected one of SIMPLE_PIN.* got model '?{model.split()[0]}"
        with pytest.raises(InvalidArgument, match=said):
            Capture.load(tmp_path)
    for model, values in (("SIMPLE_DIVISION", [500, 320, 240, -0.1]), ("DIVISION", [500, 510, 320, 240, -0.1])):
        write_colmap(tmp_path, shots(1), model, values, SIZE, binary=binary)
        with pytest.raises(
            InvalidArgument, match=rf"camera 3: {model} is supported with k = 0 only, got -0\.1; undist"
        ):
            Capture.load(tmp_path)
    values = [500, 510, 320, 240, 0.1, 0.2, 0, 0, 0.3, 0.4, 0, 0.5]
    write_colmap(tmp_path, shots(1), "THIN_PRISM_FISHEYE", values, SIZE, binary=binary)
    with pytest.raises(InvalidArgument, match=r"camera 3: THIN_PRISM_FISHEYE is supported without p1, p2, sx1 and sy1"):
        Capture.load(tmp_path)


@pytest.mark.parametrize("binary", [True, False])
def test_fisheyes_with_coefficients_are_sensors(tmp_path, binary):
    film, coefficients = {"fx": 500, "fy": 510, "cx": 320, "cy": 240}, (0.1, 0.2, 0.3, 0.4)
    values = [*film.values(), *coefficients]
    cases = {
        "OPENCV_FISHEYE": (values, coefficients),
        "THIN_PRISM_FISHEYE": ([*values[:6], 0, 0, *values[6:], 0, 0], coefficients),
        "RADIAL_FISHEYE": ([500, 320, 240, 0.1, 0.2], (0.1, 0.2, 0, 0)),
        "SIMPLE_RADIAL_FISHEYE": ([500, 320, 240, 0.1], (0.1, 0, 0, 0)),
    }
    for model, (numbers, radial) in cases.items():
        write_colmap(tmp_path, shots(1), model, numbers, SIZE, binary=binary)
        (view,) = Capture.load(tmp_path).views
        expected = FisheyeLens(**film, radial=radial)
        assert view.camera.model.lens == (expected if len(numbers) > 5 else replace(expected, fy=500))


CALIBRATIONS = {
    "ftheta": FThetaLens(
        cx=31,
        cy=25,
        max_angle=1.2,
        angle_to_pixel_distance=(0, 50, 1),
        pixel_distance_to_angle=(0, 0.02),
        linear=(1.1, 0.1, 0),
    ),
    "fisheye": FisheyeLens(fx=50, fy=51, cx=30, cy=24, radial=(0.1, 0, 0, 0.01), max_angle=1.1),
    "wide fisheye": FisheyeLens(fx=50, fy=51, cx=30, cy=24, radial=(0.1, 0, 0, 0.01), max_angle=1.9, behind=True),
    "pinhole": PinholeLens(fx=50, fy=51, cx=30, cy=24, radial=(0.1, 0, 0, 0.01), thin_prism=(0.1, 0, 0, 0)),
    "orthographic": OrthographicLens(fx=50, fy=51, cx=30, cy=24),
}


@pytest.mark.parametrize("name", CALIBRATIONS)
def test_calibrations_are_saved_and_loaded_whole(name, tmp_path):
    turn = axis_angle_rotation(np.array([0.1, 0.2, -0.3]))
    end = {"end_rotation": turn @ turn, "end_translation": np.array([1.0, 2, 3.5])}
    glass = Windshield(horizontal=(0.1, 1, 0), vertical=(0,), horizontal_inverse=(0, 1, 0), vertical_inverse=(0,))
    options = {} if name == "orthographic" else {"windshield": glass}
    camera = Camera.sensor(CALIBRATIONS[name], turn, [1, 2, 3], 64, 48, shutter="bottom_to_top", **end, **options)
    Capture((View("a", camera),)).save(tmp_path)
    (view,) = Capture.load(tmp_path).views
    found, model = view.camera.model, camera.model
    assert (found.lens, found.windshield, found.shutter) == (model.lens, model.windshield, model.shutter)
    for part in ("rotation", "translation", "end_rotation", "end_translation"):
        np.testing.assert_allclose(getattr(found, part), getattr(model, part), atol=1e-12)
    half = view.resized(32, 24).resized(64, 48).camera
    assert half.model.lens == model.lens and half.width == 64


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
    for view in Capture.load(write(tmp_path / "t.json", values)).views:
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
            Capture.load(write(tmp_path / "t.json", values))
    values["camera_model_type"] = "sphere"
    with pytest.raises(InvalidArgument, match="camera_model_type: expected one of ideal-pinhole"):
        Capture.load(write(tmp_path / "t.json", values))


def test_transforms_with_intrinsics_and_distortion_in_frames(tmp_path):
    values = transforms(shots(2), w=640, h=480, fl_x=300.0, k1=0.1)
    values["frames"][1] |= {"fl_x": 400.0, "fl_y": 410.0, "cx": 300.0, "k2": 0.2, "p1": 0.01, "p2": 0.02, "k3": 0.3}
    first, second = (view.camera.model for view in Capture.load(write(tmp_path / "t.json", values)).views)
    assert (first.fx, first.fy, first.cx, first.cy, first.distortion) == (300, 300, 320, 240, (0.1, 0, 0, 0))
    assert (second.fx, second.fy, second.cx) == (400, 410, 300)
    assert second.distortion == (0.1, 0.2, 0.01, 0.02, 0.3)


def test_blender_scenes_have_an_angle_and_photographs_without_suffix(tmp_path):
    (tmp_path / "images").mkdir()
    Image.new("RGB", (80, 60)).save(tmp_path / "images" / "photo_0.png")
    values = transforms(shots(1), camera_angle_x=2 * math.atan(0.5))
    values["frames"][0]["file_path"] = "./images/photo_0"
    view = Capture.load(write(tmp_path / "transforms_train.json", values)).views[0]
    assert (view.camera.width, view.camera.height) == (80, 60)
    assert view.camera.model.fx == pytest.approx(80)
    assert view.camera.model.fy == pytest.approx(80)
    assert view.image == tmp_path / "images" / "photo_0.png"


def test_angles_of_view_are_those_of_width_and_height(tmp_path):
    angles = {"camera_angle_x": 2 * math.atan(0.5), "camera_angle_y": 2 * math.atan(0.25)}
    values = transforms(shots(1), w=80, h=60, **angles)
    model = Capture.load(write(tmp_path / "transforms.json", values)).views[0].camera.model
    assert (model.fx, model.fy) == pytest.approx((80, 120))


def test_photographs_masks_and_points_are_found(tmp_path):
    for folder in ("images", "images_2", "masks"):
        (tmp_path / folder).mkdir()
        Image.new("RGB", (8, 6)).save(tmp_path / folder / "photo_0.jpg")
    axes = "".join(f"property double {axis}\n" for axis in "xyz")
    (tmp_path / "start.ply").write_text(f"ply\nformat ascii 1.0\nelement vertex 1\n{axes}end_header\n1 2 3")
    values = transforms(shots(2), **TOP, ply_file_path="start.ply")
    values["frames"][0]["mask_path"] = "masks/photo_0.jpg"
    path = write(tmp_path / "transforms.json", values)
    first, second = Capture.load(path).views
    assert (first.image, first.mask) == (tmp_path / "images/photo_0.jpg", tmp_path / "masks/photo_0.jpg")
    assert (second.image, second.mask) == (None, None)
    capture = Capture.load(tmp_path, images="images_2")
    assert capture.views[0].image == tmp_path / "images_2/photo_0.jpg"
    np.testing.assert_array_equal(capture.points.positions, [[1, 2, 3]])
    np.testing.assert_array_equal(capture.points.colors, [[0.5] * 3])


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


WRONG = [
    ({"frames": []}, r"frames: expected at least one frame"),
    ({"frames": [{}]}, r"frames\[0\]\.file_path: expected a text, got nothing"),
    (
        {"frames": [{"file_path": "a"}], **TOP},
        r"frames\[0\]\.transform_matrix: expected finite numbers of shape",
    ),
    ({**transforms(shots(1))}, r"frames\[0\]\.w: expected w and h in pixels, or the photograph images/photo_0\.jpg"),
    ({**transforms(shots(1), w=1.5, h=2)}, r"frames\[0\]\.w: expected a whole number of pixels >= 1, got 1\.5"),
    ({**transforms(shots(1), w=1, h=2)}, r"frames\[0\]\.fl_x: expected a focal length in pixels, or camera_angle_x"),
    (
        {**transforms(shots(1), **{**TOP, "fl_x": -1})},
        r"frames\[0\]\.fl_x: expected a focal length in pixels > 0",
    ),
    ({**transforms(shots(1), **{**TOP, "cx": "a"})}, r"frames\[0\]\.cx: expected a finite number, got 'a'"),
    (
        {**transforms(shots(1), **{**TOP, "camera_model": "EQUIRECTANGULAR"})},
        r"frames\[0\]\.camera_model: the camera model EQUIRECTANGULAR is not supported; expected SIMPLE_PINHOLE",
    ),
    (
        {**transforms(shots(1), **{**TOP, "camera_model": "THIN_PRISM_FISHEYE", "p1": 0.1})},
        r"frames\[0\]\.camera_model: THIN_PRISM_FISHEYE is supported without p1",
    ),
    (
        {**transforms(shots(1), **{**TOP, "camera_model": "OPENCV", "k4": 0.1})},
        r"frames\[0\]\.k4: expected 0 unless camera_model is a fisheye or FULL_OPENCV, got 0\.1",
    ),
    ([], r"expected a list of at least one camera, got list"),
    ([{"img_name": "a", "rotation": [[2, 0, 0], [0, 1, 0], [0, 0, 1]]}], r"\[0\]\.rotation: expected an orthonormal"),
    ([{"img_name": "a", "rotation": np.eye(3).tolist(), "fx": 1}], r"\[0\]\.fy: expected a finite number, got nothing"),
    (7, r'expected a list of cameras \(Inria\) or an object with "frames" \(nerfstudio\)'),
]


@pytest.mark.parametrize(("values", "said"), WRONG)
def test_errors_name_file_and_field(tmp_path, values, said):
    path = write(tmp_path / "views.json", values)
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


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("name", "offset", "value", "said"),
    [
        ("images", 8 + 64, b"\0", "image 1: expected the name of its photograph, got ''"),
        ("images", 12, struct.pack("<4d", 0, 0, 0, 0), "image photo_0.jpg: expected a finite pose with a quaternion"),
        ("images", 12, struct.pack("<d", 1e200), "image photo_0.jpg: expected a finite pose with a quaternion"),
        ("images", 12, struct.pack("<4d", *[1e-200] * 4), "image photo_0.jpg: expected a finite pose with a quat"),
        ("points3D", 16, struct.pack("<d", 1e300), "point 0: expected a finite position of at most 3.403e+38, got [1e"),
    ],
)
def test_values_of_colmap_that_cannot_be_are_named(tmp_path, name, offset, value, said):
    write_colmap(tmp_path, shots(1), "PINHOLE", [*FOCAL, 320, 240], SIZE, binary=True)
    path = tmp_path / f"{name}.bin"
    content = path.read_bytes()
    path.write_bytes(content[:offset] + value + content[offset + len(value) :])
    with pytest.raises(InvalidArgument) as refused:
        Capture.load(tmp_path)
    assert str(refused.value).startswith(f"path: {path}: {said}")


@settings(max_examples=150, deadline=5000, derandomize=True)
@given(data=st.data())
@pytest.mark.filterwarnings("error")
def test_damaged_colmap_files_raise_the_typed_error(tmp_path_factory, data):
    binary = data.draw(st.booleans())
    folder = tmp_path_factory.mktemp("colmap")
    write_colmap(folder, shots(3), "OPENCV", [*FOCAL, 320, 240, 0.1, 0, 0, 0], SIZE, binary=binary)
    name = data.draw(st.sampled_from(["cameras", "images", "points3D"]))
    path = folder / f"{name}.{'bin' if binary else 'txt'}"
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    else:
        start = data.draw(st.integers(0, len(content) - 8))
        word = data.draw(st.sampled_from([0, 2**63, 2**64 - 1, 0x7FF0 << 48]) | st.integers(0, 2**64 - 1))
        content[start : start + 8] = struct.pack("<Q", word)
    path.write_bytes(content)
    try:
        Capture.load(folder)
    except InvalidArgument as error:
        assert str(error).startswith(f"path: {folder}")


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


def test_points_of_text_and_damaged_files(tmp_path):
    names = "".join(f"property float {name}\n" for name in ("x", "y", "z", "red", "green", "blue"))
    header = f"ply\nformat ascii 1.0\nelement vertex 1\n{names}end_header\n"
    (tmp_path / "points.ply").write_text(header + "1 2 3 0.1 0.2 0.3")
    read = Points.load(tmp_path / "points.ply")
    np.testing.assert_allclose(read.colors, [[0.1, 0.2, 0.3]], rtol=1e-6)
    (tmp_path / "points.ply").write_text("ply\nformat ascii 1.0\nelement vertex 1\nproperty float x\nend_header\n1")
    with pytest.raises(InvalidArgument, match=r"points\.ply: expected vertex properties x, y, z, got \['x'\]"):
        Points.load(tmp_path / "points.ply")
