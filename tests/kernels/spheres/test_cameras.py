"""Cameras with exact semantics: OpenCV's, several in one call, and those that Pulsar and OpenCV can both describe."""

from __future__ import annotations

import numpy as np
import pytest

from lumigrad.kernels.spheres import Camera
from support.backends.engines import Engine
from support.closeness import assert_image, assert_relative
from support.gaussians.rotation import turned
from support.spheres.case import SphereCase
from support.spheres.cases import Cloud, build
from support.spheres.exact_runs import ExactScene, Pinhole
from support.spheres.runs import camera_of, run


def pinhole(index: int) -> Pinhole:
    return Pinhole(
        np.array([70.0 + index, 95.0 - 2 * index, 20.3 + index, 24.8]),
        turned(0.1 - 0.05 * index, -0.08, 0.3 * index),
        np.array([0.2, -0.1 * index, 0.5]),
    )


def opencv(camera: Pinhole, width: int, height: int) -> Camera:
    fx, fy, cx, cy = camera.intrinsics.tolist()
    return Camera.opencv(fx, fy, cx, cy, camera.rotation.tolist(), camera.translation.tolist(), width, height)


def assert_as_the_reference(engine: Engine, case: SphereCase, scene: ExactScene, cameras: list[Camera]) -> None:
    """Checks the views of several cameras, and the gradients."""
    calm = scene.reference().calm()[..., None]
    upstream = np.random.default_rng(3).standard_normal((len(cameras), case.height, case.width, 3)).astype(np.float32)
    given = {"color": upstream * calm}
    reference = scene.reference(given)
    result = run(engine, case, "exact", wanted=reference.wanted, output_gradients=given, cameras=cameras)
    tolerance = 1e-5 + np.stack([frame.rounding.color.numpy() for frame in reference.frames])[..., None]
    assert_image(result.outputs["color"], reference.stacked("color"), tolerance)
    for name, gradient in reference.gradients.items():
        assert_relative(name, result.gradients[name], gradient, 2e-4)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("gamma", [0.3, 0.02])
def test_opencv_cameras_match_the_reference(count: int, gamma: float, engine: Engine) -> None:
    opacities = np.random.default_rng(2).uniform(0.2, 1, 25)
    case = build(f"opencv {count}", gamma=gamma, width=40, height=46, opacities=opacities)
    cameras = [pinhole(index) for index in range(count)]
    assert_as_the_reference(engine, case, ExactScene(case, cameras), [opencv(camera, 40, 46) for camera in cameras])


def test_opencv_sees_what_is_right_before_the_eye(engine: Engine) -> None:
    case = build("close", Cloud(count=30, half_width=0.02, z=(0.005, 0.1), radii=(1e-3, 4e-3)), max_depth=0.2)
    camera = Pinhole(np.array([60.0, 66.0, 22.0, 22.0]), np.eye(3), np.zeros(3))
    reference = ExactScene(case, [camera]).reference()
    assert reference.stacked("alpha").max() > 0.9
    color = run(engine, case, "exact", cameras=[opencv(camera, 44, 44)]).outputs["color"]
    assert_image(color[0], reference.stacked("color")[0], 1e-5 + reference.frames[0].rounding.color.numpy()[..., None])


def test_opencv_works_in_compat_too(engine: Engine) -> None:
    case = build("compat opencv", right_handed=True, min_depth=4.5)
    focal = 4.0 * 44 / 2
    camera = Pinhole(np.array([focal, focal, 22.0, 22.0]), np.diag([1.0, -1.0, -1.0]), np.zeros(3))
    pulsar = run(engine, case, "compat").outputs["color"]
    other = run(engine, case, "compat", cameras=[opencv(camera, 44, 44)]).outputs["color"]
    assert (np.abs(pulsar - other).max(-1) < 1e-3).mean() > 0.99


def test_several_pulsar_cameras_share_the_near_limit_of_the_longest(engine: Engine) -> None:
    cameras = [
        (0.1, 0.0, 0.1 * i, 0.02 * i, 0.05, -0.1 * i, focal, 2.0) for i, focal in enumerate((3.0, 5.0, 4.0, 4.5))
    ]
    cases = [build("four", Cloud(count=40, z=(4.5, 12.0)), camera=camera, gamma=0.2) for camera in cameras]
    scene = ExactScene(cases[0], [case.camera for case in cases])
    assert_as_the_reference(engine, cases[0], scene, [camera_of(case) for case in cases])


def test_many_cameras_give_what_each_gives_alone(engine: Engine) -> None:
    cases = [
        build("alone", Cloud(count=60), min_depth=5.0, camera=(0.02 * i, 0, 0, 0, 0, 0.1 * i, 4, 2)) for i in range(20)
    ]
    upstream = np.random.default_rng(9).standard_normal((20, 44, 44, 3)).astype(np.float32)
    wanted = ("positions", "colors", "radii", "background", "gamma")
    options = {"outputs": ("color", "depth"), "wanted": (*wanted, "cameras")}
    given, views = {"color": upstream}, [camera_of(case) for case in cases]
    together = run(engine, cases[0], "exact", output_gradients=given, cameras=views, **options)  # type: ignore[arg-type]
    sums = {name: np.zeros(together.gradients[name].shape) for name in wanted}
    for index, case in enumerate(cases):
        given = {"color": upstream[index : index + 1]}
        alone = run(engine, case, "exact", output_gradients=given, **options)  # type: ignore[arg-type]
        for name in ("color", "depth"):
            np.testing.assert_array_equal(together.outputs[name][index], alone.outputs[name][0])
        assert_relative("cameras", together.gradients["cameras"][index], alone.gradients["cameras"][0], 1e-5)
        for name in wanted:
            sums[name] += alone.gradients[name]
    for name, total in sums.items():
        assert_relative(name, together.gradients[name], total, 1e-5)
