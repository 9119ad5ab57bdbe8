"""Reconstructions of COLMAP: their cameras, masks and points, and damaged files."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lumigrad.client import FisheyeLens, InvalidArgument
from lumigrad.client.datasets import Capture
from support.files.dataset_files import FOCAL, SIZE, assert_same, shots, write_colmap


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
    refused = {"FOV": [500, 510, 320, 240, 0.5], "EUCM": [500, 510, 320, 240, 0.5, 1]}
    refused |= {"EQUIRECTANGULAR": [640, 480], "number 18": []}
    for model, values in refused.items():
        write_colmap(tmp_path, shots(1), model, values, SIZE, binary=binary)
        said = rf"cameras\.(bin|txt): .*expected one of SIMPLE_PIN.* got model '?{model.split()[0]}"
        with pytest.raises(InvalidArgument, match=said):
            Capture.load(tmp_path)
    for model, values in (("SIMPLE_DIVISION", [500, 320, 240, -0.1]), ("DIVISION", [500, 510, 320, 240, -0.1])):
        write_colmap(tmp_path, shots(1), model, values, SIZE, binary=binary)
        with pytest.raises(InvalidArgument, match=rf"camera 3: {model} is supported with k = 0 only, got -0\.1; undis"):
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


@settings(max_examples=80, deadline=60_000, derandomize=True)
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
