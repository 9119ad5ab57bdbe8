"""`lumigrad render` through lenses and shutters: pictures are those of the client's cameras."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from lumigrad.client import Camera, Client, FisheyeLens, FThetaLens, OrthographicLens, PinholeLens, Windshield
from lumigrad.client.datasets.calibration import Calibration
from lumigrad.client.values.rotations import axis_angle_rotation
from support.gaussians.clouds import post

LOOK = ("--camera", "look-at 0,-1,4 0,0,0", "--fov", "60")
SIZE = (60, 40)
POSE = Camera.look_at((0, -1, 4), (0, 0, 0), (0, -1, 0), fov_degrees=60, width=60, height=40).model
FOCAL = 20 / math.tan(math.radians(30))
CENTER = {"cx": 30.0, "cy": 20.0}
FILM = {"fx": FOCAL, "fy": FOCAL, **CENTER}
SLOPE = 20 / math.radians(30)
OPENCV = PinholeLens(**FILM, radial=(-0.3, 0.1, 0.01), tangential=(0.02, 0.0))
CASES: dict[str, tuple[tuple[str, ...], Any]] = {
    "opencv": (("--camera-model", "opencv", "--coefficients=-0.3,0.1,0.02,0,0.01"), OPENCV),
    "fisheye": (
        ("--camera-model", "fisheye", "--coefficients=-0.02"),
        FisheyeLens(fx=SLOPE, fy=SLOPE, **CENTER, radial=(-0.02,)),
    ),
    "orthographic": (("--camera-model", "orthographic"), None),
}


def shown(render: Any, scene: Any, *options: str) -> np.ndarray:
    done = render("-o", "out.npy", *options)
    assert done.returncode == 0, done.stderr
    return np.load(scene.with_name("out.npy"))


def expected(client: Client, lens: Any, settings: dict[str, Any] | None = None, **options: Any) -> np.ndarray:
    camera = Camera.sensor(lens, POSE.rotation, POSE.translation, *SIZE, **options)
    return client.render(post(), camera, **(settings or {})).color


@pytest.mark.parametrize("name", CASES)
def test_lenses_are_those_of_the_options(name, render, scene, client: Client):
    options, lens = CASES[name]
    picture = shown(render, scene, *LOOK, "--size", "60x40", *options)
    if lens is None:
        depth = float(np.median(post().means @ POSE.rotation[2] + POSE.translation[2]))
        lens = OrthographicLens(fx=FOCAL / depth, fy=FOCAL / depth, **CENTER)
    np.testing.assert_allclose(picture, expected(client, lens), atol=1e-6)
    assert np.abs(picture - expected(client, PinholeLens(**FILM))).max() > 0.05


def test_a_wide_f_theta_lens_orders_by_distance(render, scene, client: Client):
    options = ("--camera-model", "ftheta", "--coefficients=0,20,0,-0.2")
    picture = shown(render, scene, *LOOK, "--size", "60x40", *options)
    angles = np.linspace(0, math.pi, 200001)
    corner = angles[np.searchsorted(20 * angles - 0.2 * angles**3, math.hypot(60, 40) / 2)]
    lens = FThetaLens(max_angle=corner + 0.005, angle_to_pixel_distance=(0, 20, 0, -0.2), **CENTER)
    np.testing.assert_allclose(picture, expected(client, lens, {"depth_order": "distance"}), atol=1e-5)


def test_files_of_lenses_and_motions_during_the_exposure(render, scene, client: Client):
    glass = Windshield(horizontal=(0.02, 1.1, 0.0), vertical=(0.0, 0.0, 0.9))
    lens = FThetaLens(max_angle=0.8, angle_to_pixel_distance=(0, 42, 0, -2), cx=31.0, cy=19.0)
    values = Calibration(lens, *SIZE, windshield=glass).values()
    scene.with_name("lens.json").write_text(json.dumps(values))
    motion = ("--shutter", "left_to_right", "--motion", "0.3,0,0.1,0,4,0")
    # The picture has the size of the calibration.
    picture = shown(render, scene, *LOOK[:2], "--lens", "lens.json", *motion)
    turn = axis_angle_rotation(np.radians([0.0, 4.0, 0.0]))
    # A point at x is at R^T (x - t) after the camera has moved by t and turned by R.
    rotation, translation = turn.T @ POSE.rotation, turn.T @ (POSE.translation - [0.3, 0, 0.1])
    end = {"end_rotation": rotation, "end_translation": translation, "shutter": "left_to_right"}
    np.testing.assert_allclose(picture, expected(client, lens, windshield=glass, **end), atol=1e-6)
    half = shown(render, scene, *LOOK[:2], "--lens", "lens.json", "--size", "30x20")
    assert half.shape == (20, 30, 3)
    # A file of one camera has poses too.
    poses = {"rotation": POSE.rotation, "translation": POSE.translation, "end_rotation": rotation}
    poses |= {"end_translation": translation}
    rolling = Calibration(lens, *SIZE, "left_to_right", glass).values()
    camera = {**rolling, **{name: np.asarray(value).tolist() for name, value in poses.items()}}
    scene.with_name("camera.json").write_text(json.dumps(camera))
    np.testing.assert_allclose(shown(render, scene, "--camera", "camera.json"), picture, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--coefficients=0.1",), "--coefficients: expected with --camera-model opencv, fisheye or ftheta"),
        (("--shutter", "top_to_bottom"), "--shutter: expected together with --motion"),
        (("--shutter", "top_to_bottom", "--motion", "1,2"), "--motion: expected X,Y,Z or X,Y,Z,A,B,C, got 2"),
        (("--camera-model", "opencv", "--coefficients=1,2,3"), "tangential: expected 0 or 2 finite coefficients"),
        (
            ("--camera-model", "opencv", "--coefficients=" + ",".join(["0"] * 14)),
            "--coefficients: expected at most 12 of the lens opencv, got 14",
        ),
        (
            ("--camera-model", "opencv", "--primitive", "surfels"),
            "--camera-model: expected none with surfels, which need a pinhole without distortion or shutter",
        ),
        (
            ("--shutter", "top_to_bottom", "--motion", "1,0,0", "--primitive", "surfels"),
            "--shutter: expected none with surfels",
        ),
        (("--lens", "scene.ply"), "expected a JSON file"),
        (("--lens", "lens.json", "--fov", "20"), "--fov: is defined by --lens; leave it out"),
        (("--camera-model", "fisheye", "--as", "spheres"), "--camera-model: expected with Gaussians"),
    ],
)
def test_what_does_not_fit_is_said(options, text, render):
    done = render("-o", "out.png", "--size", "32x24", *options)
    assert done.returncode != 0 and text in done.stderr, done.stderr
