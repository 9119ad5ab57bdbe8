"""Cameras and transforms as the engine's poses and back, against the definitions and finite differences."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from lumigrad.kernels.gaussians import Camera, Transform, lens
from lumigrad.kernels.gaussians.camera_sources import InriaSource, OpenCVSource
from lumigrad.kernels.gaussians.transforms import Slices, cut, poses

Doubles = NDArray[np.float64]
COUNT = 12
STEP = 1e-6


def turn(vector: Doubles) -> Doubles:
    """exp of [vector], by Rodrigues' formula."""
    angle = float(np.linalg.norm(vector))
    k = np.cross(np.eye(3), vector)
    if angle < 1e-12:
        return np.eye(3) + k
    return np.asarray(np.eye(3) + math.sin(angle) / angle * k + (1 - math.cos(angle)) / angle**2 * (k @ k))


def rigid(random: np.random.Generator) -> Doubles:
    matrix = np.eye(4)
    matrix[:3, :3] = turn(random.normal(size=3))
    matrix[:3, 3] = random.normal(size=3)
    return matrix


def camera(view: Doubles) -> Camera:
    return Camera.opencv(30.0, 31.0, 16.0, 12.0, view[:3, :3], view[:3, 3], 32, 24)


def inria_camera(view: Doubles, position: Doubles, projection: Doubles) -> Camera:
    return Camera.inria(view.T, projection, position, 0.5, 0.4, 32, 24)


def cameras_of(views: list[Doubles]) -> list[Camera]:
    return [camera(view) for view in views]


def transforms_of(matrices: list[Doubles]) -> list[Transform]:
    # The second slice first; Gaussians 5 and 6, and those from 10 on, are in no slice.
    return [Transform(7, 10, matrices[0]), Transform(0, 5, matrices[1])]


def differences(function: Callable[[Doubles], float], at: Doubles) -> Doubles:
    gradient = np.zeros_like(at)
    for index in np.ndindex(at.shape):
        step = np.zeros_like(at)
        step[index] = STEP
        gradient[index] = (function(at + step) - function(at - step)) / (2 * STEP)
    return gradient


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.fixture
def views(random: np.random.Generator) -> list[Doubles]:
    # View matrices need not be rigid.
    return [rigid(random) + np.vstack([0.2 * random.normal(size=(3, 4)), np.zeros((1, 4))]) for _ in range(3)]


@pytest.fixture
def matrices(random: np.random.Generator) -> list[Doubles]:
    return [rigid(random), rigid(random)]


def test_slices_cover_all_gaussians(matrices: list[Doubles]) -> None:
    slices = cut(transforms_of(matrices), COUNT)
    assert slices.begins == (0, 5, 7, 10, 12)
    assert slices.of_transform == (2, 0)
    np.testing.assert_array_equal(slices.rotations[2], matrices[0][:3, :3])
    np.testing.assert_array_equal(slices.translations[0], matrices[1][:3, 3])
    for gap in (1, 3):
        np.testing.assert_array_equal(slices.rotations[gap], np.eye(3))
        np.testing.assert_array_equal(slices.translations[gap], np.zeros(3))


@pytest.mark.parametrize("count", [0, 1, 7])
def test_without_transforms_there_is_one_slice(count: int) -> None:
    assert cut((), count).begins == (0, count)


def test_slices_that_meet_leave_no_gap(matrices: list[Doubles]) -> None:
    slices = cut([Transform(0, 5, matrices[0]), Transform(5, COUNT, matrices[1])], COUNT)
    assert slices.begins == (0, 5, COUNT)


def test_a_pose_is_the_view_after_the_transform(views: list[Doubles], matrices: list[Doubles]) -> None:
    slices = cut(transforms_of(matrices), COUNT)
    all_poses = poses(cameras_of(views), slices)
    point = np.array([0.3, -1.2, 2.5])
    for v, view in enumerate(views):
        for transform, g in zip(transforms_of(matrices), slices.of_transform, strict=True):
            pose = all_poses[v, g]
            moved = transform.matrix[:3, :3] @ point + transform.matrix[:3, 3]
            seen = pose[:9].reshape(3, 3) @ point + pose[9:12]
            np.testing.assert_allclose(seen, view[:3, :3] @ moved + view[:3, 3], atol=1e-12)
            eye = transform.matrix[:3, :3] @ pose[12:] + transform.matrix[:3, 3]
            np.testing.assert_allclose(eye, -view[:3, :3].T @ view[:3, 3], atol=1e-12)


def test_far_from_the_origin_poses_keep_their_precision() -> None:
    far = np.eye(4)
    far[:3, 3] = 1e7
    view = np.eye(4)
    view[:3, 3] = -1e7, -1e7, -1e7 + 3.0
    pose = poses([camera(view)], cut([Transform(0, 2, far)], 2)).astype(np.float32)
    np.testing.assert_array_equal(pose[0, 0, 9:12], [0.0, 0.0, 3.0])


def test_an_opencv_camera_sees_from_where_its_matrix_says(random: np.random.Generator) -> None:
    view = rigid(random)
    source = camera(view).source
    assert isinstance(source, OpenCVSource)
    np.testing.assert_allclose(view[:3, :3] @ source.eye + view[:3, 3], np.zeros(3), atol=1e-12)


def test_inria_matrices_are_row_vector_matrices(random: np.random.Generator) -> None:
    view = rigid(random)
    source = inria_camera(view, np.zeros(3), np.eye(4)).source
    assert isinstance(source, InriaSource)
    np.testing.assert_array_equal(source.rotation, view[:3, :3])
    np.testing.assert_array_equal(source.translation, view[:3, 3])


@pytest.mark.parametrize("pixel_center", [0.0, 0.5])
def test_inria_intrinsics_agree_with_the_usual_projection(pixel_center: float) -> None:
    cam = inria_camera(np.eye(4), np.zeros(3), np.eye(4))
    fx, fy, cx, cy = cam.intrinsics(pixel_center)
    x, y, z = 0.7, -0.4, 2.0
    # Normalised coordinates, where P00 = 1 / tan_fov, are x / (z tan_fov); the first pixel's centre is at 0.
    film = [((x / z / 0.5 + 1) * 32 - 1) / 2, ((y / z / 0.4 + 1) * 24 - 1) / 2]
    np.testing.assert_allclose([fx * x / z + cx, fy * y / z + cy], np.array(film) + pixel_center, atol=1e-12)


def test_limits_of_both_cameras_agree_where_the_axis_is_central() -> None:
    tan_x, tan_y = 0.5, 0.4
    inria = inria_camera(np.eye(4), np.zeros(3), np.eye(4))
    opencv = Camera.opencv(16 / tan_x, 12 / tan_y, 16.0, 12.0, np.eye(3), np.zeros(3), 32, 24)
    np.testing.assert_allclose(inria.limits(), [-1.3 * tan_x, 1.3 * tan_x, -1.3 * tan_y, 1.3 * tan_y])
    np.testing.assert_allclose(opencv.limits(), inria.limits())


def test_limits_follow_the_principal_point() -> None:
    cam = Camera.opencv(20.0, 10.0, 4.0, 20.0, np.eye(3), np.zeros(3), 32, 24)
    np.testing.assert_allclose(cam.limits(), [-(4 + 4.8) / 20, (28 + 4.8) / 20, -(20 + 3.6) / 10, (4 + 3.6) / 10])


@pytest.mark.parametrize("model", ["orthographic", "fisheye"])
def test_only_pinholes_have_limits(model: str) -> None:
    cam = Camera.opencv(20.0, 10.0, 4.0, 20.0, np.eye(3), np.zeros(3), 32, 24, model=model)
    assert cam.limits() == (-math.inf, math.inf, -math.inf, math.inf)


@pytest.mark.parametrize(
    "distortion",
    [
        (-0.3, 0.05),
        (-0.25, 0.0),
        (0.4, -0.2),
        (-0.3, 0.1, -0.05),
        (0.1, 0.02, 0.3, 0.5, 0.2, 0.9),
        (0, 0, 0, -0.5, 0, 0),
    ],
)
def test_the_distorted_radius_grows_up_to_the_limit(distortion: tuple[float, ...]) -> None:
    radial = (*distortion, *(0.0,) * (6 - len(distortion)))
    k1, k2, k3, k4, k5, k6 = radial
    square = lens.max_radius_squared((k1, k2, 0.0, 0.0, k3, k4, k5, k6))
    radius = np.linspace(1e-3, min(math.sqrt(square), 20.0) * (1 - 1e-6), 4000)
    s = radius**2
    bent = radius * (1 + s * (k1 + s * (k2 + s * k3))) / (1 + s * (k4 + s * (k5 + s * k6)))
    assert (np.diff(bent) > 0).all()
    if square < math.inf:
        beyond = np.sqrt(square) * np.array([1 + 1e-4, 1 + 2e-4])
        s = beyond**2
        bent = beyond * (1 + s * (k1 + s * (k2 + s * k3))) / (1 + s * (k4 + s * (k5 + s * k6)))
        assert bent[1] < bent[0] or bent[0] < 0


def test_a_cushion_never_folds_back() -> None:
    assert lens.max_radius_squared((0.2, 0.01, 0.3, 0.1, 0.0, 0.0, 0.0, 0.0)) == math.inf


def test_tangential_distortion_alone_sets_no_limit() -> None:
    assert lens.max_radius_squared((0.0, 0.0, 0.01, 0.02, 0.0, 0.0, 0.0, 0.0)) == math.inf


def test_a_single_slice_without_motion_is_the_view(views: list[Doubles]) -> None:
    slices: Slices = cut((), COUNT)
    for pose, view in zip(poses(cameras_of(views), slices)[:, 0], views, strict=True):
        np.testing.assert_array_equal(pose[:9].reshape(3, 3), view[:3, :3])
        np.testing.assert_array_equal(pose[9:12], view[:3, 3])
