"""Captures that are saved and loaded again, and what files cannot express."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lumigrad.client import Camera, FisheyeLens, FThetaLens, InvalidArgument, OrthographicLens, PinholeLens, Windshield
from lumigrad.client.datasets import Capture, Points, View
from lumigrad.client.datasets.view import Split
from lumigrad.client.values.rotations import axis_angle_rotation
from support.files.dataset_files import TOP, assert_same, shots, transforms, write_json


@pytest.mark.parametrize("form", ["nerfstudio", "colmap"])
def test_what_is_saved_is_what_is_loaded(form, tmp_path):
    images = tmp_path / "set" / "images"
    images.mkdir(parents=True)
    for shot in shots():
        (images / Path(shot.file).name).write_bytes(b"")
    lens = {"k1": -0.2, "k2": 0.05, "p1": 0.001, "p2": -0.002, "k3": 0.01}
    source = write_json(
        tmp_path / "set" / "other.json", transforms(shots(), **{**TOP, "camera_model": "OPENCV", **lens})
    )
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
    write_json(tmp_path / "set" / "transforms.json", transforms(shots(), **TOP))
    capture = Capture.load(tmp_path / "set")
    capture.save(tmp_path / "new" / "deep", form=form)
    again = Capture.load(tmp_path / "new" / "deep")
    assert [view.image.resolve() for view in again.views] == [view.image for view in capture.views]


def test_fisheyes_are_saved_with_their_coefficients(tmp_path):
    top = {**TOP, "camera_model": "OPENCV_FISHEYE", "k1": 0.1, "k2": -0.02, "k3": 0.003, "k4": -0.0004}
    capture = Capture.load(write_json(tmp_path / "other.json", transforms(shots(), **top)), sensors=True)
    for form in ("nerfstudio", "colmap"):
        capture.save(tmp_path / form, form=form)
        (view, *_) = Capture.load(tmp_path / form, sensors=True).views
        assert isinstance(view.camera.model.lens, FisheyeLens)
        assert view.camera.model.lens.radial == (0.1, -0.02, 0.003, -0.0004)


CALIBRATIONS = {
    "ftheta": FThetaLens(
        **{"cx": 31, "cy": 25, "max_angle": 1.2, "linear": (1.1, 0.1, 0)},
        **{"angle_to_pixel_distance": (0, 50, 1), "pixel_distance_to_angle": (0, 0.02)},
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
    (view,) = Capture.load(write_json(tmp_path / "a.json", transforms(shots(1), **TOP))).views
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
    (view,) = Capture.load(write_json(tmp_path / "a.json", transforms(shots(1), **TOP))).views
    with pytest.raises(InvalidArgument, match=r"^views: .* cannot be saved: expected a name that a line of text holds"):
        Capture((replace(view, name=name, image=None),)).save(tmp_path / "set", form="colmap")
    assert not (tmp_path / "set").exists()
