"""Cameras against projections that are written out here, in float64."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

from lumigrad.client import Camera, FisheyeLens, Gaussians, InvalidArgument, PinholeLens, Spheres
from lumigrad.client.rendering.request import RenderRequest
from lumigrad.client.settings.gaussians import GaussianSettings
from lumigrad.client.settings.spheres import SphereSettings

SPHERES = Spheres([[0, 0, 5]], [[1, 0, 0]], [1])
GAUSSIANS = Gaussians([[0, 0, 5]], [[1, 0, 0, 0]], [[1, 1, 1]], [0.5], colors=[[1, 0, 0]])


def opencv(cx: float = 4, rotation: np.ndarray | None = None, **options) -> Camera:
    return Camera.opencv(5, 6, cx, 3, np.eye(3) if rotation is None else rotation, np.zeros(3), 8, 8, **options)


def inria(position=(0, 0, 0), full_projection=None, tan_fov_x: float = 0.5) -> Camera:
    projection = np.eye(4) if full_projection is None else full_projection
    return Camera.inria(np.eye(4), projection, position, tan_fov_x, 0.4, 8, 8)


def project(camera: Camera, point) -> tuple[float, float, float]:
    """Pixel coordinates and depth of a world point: OpenCV's formula."""
    model = camera.model
    x, y, z = model.rotation @ np.asarray(point, np.float64) + model.translation
    return model.fx * x / z + model.cx, model.fy * y / z + model.cy, z


def test_look_at_puts_the_target_in_the_middle_and_up_upwards():
    camera = Camera.look_at((3, 2, 5), (1, 0.5, -1), width=640, height=480)
    u, v, depth = project(camera, (1, 0.5, -1))
    assert (u, v) == pytest.approx((320, 240))
    assert depth == pytest.approx(math.dist((3, 2, 5), (1, 0.5, -1)))
    above_u, above_v, _ = project(camera, (1, 0.9, -1))
    assert above_u == pytest.approx(320)
    assert above_v < 240
    np.testing.assert_allclose(camera.model.eye, (3, 2, 5))


def test_the_field_of_view_is_vertical():
    camera = Camera.look_at((0, 0, 5), (0, 0, 0), fov_degrees=60, width=200, height=100)
    _, v, _ = project(camera, (0, 5 * math.tan(math.radians(30)), 0))
    assert v == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("up", "angles", "direction"),
    [
        ((0, 1, 0), (0, 0), (0, 0, 1)),
        ((0, 1, 0), (90, 0), (1, 0, 0)),
        ((0, 0, 1), (0, 0), (1, 0, 0)),
        ((0, 0, 1), (90, 0), (0, 1, 0)),
        ((0, 0, 1), (0, 30), (math.cos(math.pi / 6), 0, 0.5)),
        ((0, -1, 0), (90, 0), (-1, 0, 0)),
    ],
)
def test_orbit_goes_around_the_axis_that_is_up(up, angles, direction):
    camera = Camera.orbit((1, 2, 3), 4.0, *angles, up)
    np.testing.assert_allclose(camera.model.eye, np.array([1, 2, 3]) + 4.0 * np.array(direction), atol=1e-12)
    u, v, depth = project(camera, (1, 2, 3))
    assert (u, v, depth) == pytest.approx((256, 256, 4.0))
    _, higher, _ = project(camera, np.array([1, 2, 3]) + 0.1 * np.array(up))
    assert higher < v


def test_pulsar_cameras_know_their_eye_and_focal_length():
    turned = (math.pi / 2, 0, 0)
    plain = Camera.pulsar([1, 2, 3, *turned, 5, 2], 10, 8).model
    np.testing.assert_allclose(plain.eye, (1, 2, 3))
    assert plain.focal_length == 5
    # A quarter turn around x takes y to z and z to -y.
    moved = Camera.pulsar([1, 2, 3, *turned, 5, 2], 10, 8, first_r_then_t=True).model
    np.testing.assert_allclose(moved.eye, (1, -3, 2), atol=1e-6)
    # The same rotation in six-D: its first two rows, here not of unit length and not orthogonal.
    six_d = Camera.pulsar([1, 2, 3, 2, 0, 0, 5, 0, -3, 7, 2, 4, -1], 10, 8, first_r_then_t=True).model
    np.testing.assert_allclose(six_d.eye, (1, -3, 2), atol=1e-6)
    assert six_d.focal_length == 7


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Camera.pulsar([0.0] * 9, 8, 8), "parameters: expected 8, 10, 11 or 13 values .*, got 9"),
        (lambda: Camera.pulsar([0.0] * 8, 0, 8), "width: expected a whole number of pixels from 1 to .*, got 0"),
        (lambda: Camera.opencv(0, 1, 0, 0, np.eye(3), np.zeros(3), 8, 8), "fx: expected a focal length"),
        (lambda: opencv(cx=math.inf), "cx: expected a finite number of pixels, got inf"),
        (lambda: opencv(model="panorama"), "model: expected one of pinhole, orthographic, fisheye, got 'panorama'"),
        (
            lambda: opencv(distortion=(1, 2, 3)),
            r"distortion: expected no coefficients, or 4, 5 .*, got \[1, 2, 3\]",
        ),
        (lambda: opencv(model="fisheye", distortion=(1, 2, 3, 4)), 'distortion: expected none for model="fisheye"'),
        (lambda: Camera.from_view_matrix(np.eye(4)[:3], np.eye(3), 8, 8), r"view_matrix: .* shape \[4, 4\]"),
        (
            lambda: Camera.from_view_matrix([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [1, 2, 3, 1]], np.eye(3), 8, 8),
            r"view_matrix: expected the last row 0 0 0 1, got \[1.0, 2.0, 3.0, 1.0\]; transpose",
        ),
        (
            lambda: Camera.from_view_matrix(np.eye(4), [[1, 0.5, 0], [0, 1, 0], [0, 0, 1]], 8, 8),
            "intrinsics: expected fx 0 cx, 0 fy cy, 0 0 1, got",
        ),
        (lambda: inria(tan_fov_x=0), "tan_fov_x: expected the tangent of half an angle, > 0, got 0"),
        (lambda: inria(position=(0, 0)), r"position: expected finite numbers of shape \[3\]"),
        (lambda: inria(full_projection=np.eye(3)), "full_projection: expected finite numbers of shape"),
        (lambda: Camera.opencv(1, 1, 0, 0, np.eye(3), [0, 0, np.nan], 8, 8), "translation: expected finite numbers"),
        (lambda: Camera.look_at((0, 0, 0), (0, 0, 0)), "target: expected a direction"),
        (lambda: Camera.look_at((0, 0, 0), (0, 1, 0)), "up: expected a direction that differs"),
        (lambda: Camera.look_at((0, 0, 0), (0, 0, 1), fov_degrees=180), "fov_degrees: expected an angle"),
        (lambda: Camera.orbit((0, 0, 0), 0, 0, 0), "distance: expected a distance > 0, got 0"),
        (lambda: Camera.orbit((0, 0, 0), 1, 0, 90), "elevation_degrees: expected an angle"),
    ],
)
def test_refusals_name_the_argument(make, text):
    with pytest.raises(InvalidArgument, match=f"^{text}"):
        make()


def test_view_matrices_become_poses():
    view = np.array([[0, -1, 0, 0.5], [1, 0, 0, -2], [0, 0, 1, 3], [0, 0, 0, 1]], np.float64)
    camera = Camera.from_view_matrix(view, [[50, 0, 20.5], [0, 60, 15], [0, 0, 1]], 40, 30, model="orthographic")
    model = camera.model
    assert (model.fx, model.fy, model.cx, model.cy, model.projection) == (50, 60, 20.5, 15, "orthographic")
    np.testing.assert_array_equal(model.rotation, view[:3, :3])
    np.testing.assert_array_equal(model.translation, view[:3, 3])
    np.testing.assert_allclose(view[:3, :3] @ model.eye + view[:3, 3], 0, atol=1e-12)


def test_cameras_have_the_matrices_that_they_are_made_of():
    camera = Camera.look_at((3, 2, 5), (1, 0.5, -1), width=640, height=480)
    np.testing.assert_allclose(camera.position, (3, 2, 5))
    u, v, depth = camera.K @ (camera.view_matrix @ (1, 0.5, -1, 1))[:3]
    assert (u / depth, v / depth) == pytest.approx((320, 240))
    again = Camera.from_view_matrix(camera.view_matrix, camera.K, camera.width, camera.height)
    np.testing.assert_array_equal(again.view_matrix, camera.view_matrix)
    np.testing.assert_array_equal(again.K, camera.K)
    real = Camera.sensor(
        FisheyeLens(fx=5, fy=6, cx=4, cy=3), camera.view_matrix[:3, :3], camera.view_matrix[:3, 3], 8, 8
    )
    np.testing.assert_array_equal(real.view_matrix, camera.view_matrix)
    np.testing.assert_array_equal(real.K, [[5, 0, 4], [0, 6, 3], [0, 0, 1]])
    theirs = Camera.inria(camera.view_matrix.T, np.eye(4), camera.position, 0.5, 0.4, 8, 8)
    np.testing.assert_array_equal(theirs.view_matrix, camera.view_matrix)
    np.testing.assert_allclose(theirs.K, [[8, 0, 4], [0, 10, 4], [0, 0, 1]])


def test_cameras_without_matrices_say_so():
    pulsar = Camera.pulsar([1, 2, 3, 0, 0, 0, 1, 2], 8, 8)
    np.testing.assert_array_equal(pulsar.position, (1, 2, 3))
    for name in ("view_matrix", "K"):
        with pytest.raises(InvalidArgument, match=r"camera: expected one with .*, got .*Pulsar"):
            getattr(pulsar, name)


def test_inria_cameras_keep_their_matrices_in_float64():
    projection = np.arange(16.0).reshape(4, 4) / 3
    model = Camera.inria(np.eye(4, dtype=np.float32), projection, (1, 2, 3), 0.5, 0.4, 8, 6).model
    np.testing.assert_array_equal(model.full_projection, projection)
    assert model.full_projection.dtype == model.view_matrix.dtype == np.float64
    np.testing.assert_array_equal(model.eye, (1, 2, 3))


@pytest.mark.parametrize(("focal", "warns"), [((0.9, 1.2), True), ((40.0, 1.2), False), ((40.0, 40.0), False)])
@pytest.mark.parametrize("kind", ["pinhole", "fisheye", "sensor", "orthographic"])
def test_focal_lengths_in_fractions_of_the_picture_are_told(focal, warns, kind):
    pose = (np.eye(3), np.zeros(3))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        if kind == "sensor":
            Camera.sensor(PinholeLens(fx=focal[0], fy=focal[1], cx=0.5, cy=0.5), *pose, 640, 480)
        else:
            Camera.opencv(*focal, 0.5, 0.5, *pose, 640, 480, model=kind)
    texts = [str(each.message) for each in told]
    assert [
        text.startswith("fx, fy, cx, cy: expected pixels, got 0.9, 1.2, 0.5, 0.5 for a picture of 640 x 480")
        for text in texts
    ] == [True] * (warns and kind != "orthographic")
    assert all(each.filename == __file__ for each in told)


@pytest.mark.filterwarnings("error")
def test_wide_pinholes_are_not_taken_for_fractions():
    Camera.look_at((0, 0, -4), (0, 0, 0), fov_degrees=175, width=640, height=480)


@pytest.mark.parametrize(
    ("camera", "text"),
    [
        (opencv(rotation=2 * np.eye(3)), "rotation: expected an orthonormal"),
        (opencv(rotation=-np.eye(3)), "rotation: .* negate the second and third"),
        (opencv(model="fisheye"), "model: expected \"pinhole\" for spheres, got 'fisheye'"),
        (opencv(distortion=(0.1, 0, 0, 0)), "distortion: expected none for spheres, got 4 coefficients; undistort it"),
        (inria(), "camera: expected pulsar or opencv for spheres, got InriaModel"),
    ],
)
def test_spheres_are_seen_by_plain_pinholes_only(camera, text):
    with pytest.raises(InvalidArgument, match=f"^{text}"):
        RenderRequest(SPHERES, (camera,), True, SphereSettings(gamma=0.1, max_depth=2.0), ("color",))


def test_gaussians_are_seen_by_any_matrix_but_not_by_pulsars_camera():
    for camera in (opencv(rotation=2 * np.eye(3)), opencv(model="fisheye"), inria()):
        RenderRequest(GAUSSIANS, (camera,), True, GaussianSettings(), ("color",))
    with pytest.raises(InvalidArgument, match=r"^camera: expected opencv, inria or sensor for Gaussians, got PulsarMo"):
        RenderRequest(GAUSSIANS, (Camera.pulsar([0.0] * 8, 8, 8),), True, GaussianSettings(), ("color",))


@pytest.mark.parametrize(
    ("place", "radius", "said"),
    [
        (np.nan, 1, "positions: expected finite values"),
        (np.inf, 1, "positions: expected finite values"),
        (0, np.inf, "radii: expected finite values"),
        (0, 3e38, "max_depth: has no default for spheres that are so far away or so large"),
        (3e38, 3e38, "max_depth: has no default for spheres that are so far away or so large"),
    ],
)
def test_spheres_that_are_not_finite_are_named_before_the_depth_that_depends_on_them(
    place: float, radius: float, said: str
) -> None:
    spheres = Spheres([[0, 0, place]], [[1, 1, 1]], [radius])
    with pytest.raises(InvalidArgument, match=f"^{said}"):
        RenderRequest(spheres, (Camera.look_at((0, 0, -3), (0, 0, 0), (0, -1, 0)),), True, SphereSettings(), ("color",))
