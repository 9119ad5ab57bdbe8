"""Sensors: images and every gradient as the reference computes them, on each machine."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from lumigrad.kernels import gaussians
from lumigrad.kernels.gaussians import Gaussians, PinholeLens, Settings
from lumigrad.kernels.gaussians.rotation import rotation_about
from support.backends.gaussian_engines import Engine, cpu
from support.closeness import assert_image, assert_of_maximum, assert_relative
from support.gaussians.sensor_cases import (
    CASES,
    END,
    JACOBIAN_CASES,
    OUTPUTS,
    START,
    WIDE_FISHEYE,
    Known,
    SensorCase,
    known,
    reference,
    run,
    scene,
)

ALL = {**CASES, **JACOBIAN_CASES}
TOLERANCES = {"lens_": 2e-3, "windshield": 2e-3, "camera_intrinsics": 2e-3}


@cache
def expected(name: str) -> Known:
    return known(*reference(ALL[name]))


@pytest.mark.parametrize("name", ALL)
def test_images_and_gradients_are_those_of_the_reference(name: str, gaussian_engine: Engine) -> None:
    images, gradients, upstream = expected(name)
    found = run(gaussian_engine, ALL[name], upstream)
    stable, seen = images["stable"].numpy(), images["visible"].numpy()
    assert stable.mean() > 0.97, "most pixels count"
    assert seen.sum() > 25, "most Gaussians count"
    for output in ("color", "alpha", "depth", "inverse_depth"):
        values = images[output].detach().numpy()
        assert_image(found.outputs[output][stable], values[stable], 3e-5 * max(1.0, float(np.abs(values).max())))
    np.testing.assert_array_equal(found.outputs["radii"].any(-1), seen)
    assert_image(found.outputs["means2d"][seen], images["means2d"].detach().numpy()[seen], 2e-5)
    assert_of_maximum("conics", found.outputs["conics"][seen], images["conics"].detach().numpy()[seen], 1e-5)
    assert_image(found.outputs["depths"][seen], images["depths"].detach().numpy()[seen], 1e-5)
    for key, gradient in gradients.items():
        tolerance = next((value for start, value in TOLERANCES.items() if key.startswith(start)), 1e-3)
        actual = found.gradients[key]
        assert_relative(key, actual.reshape(gradient.shape), gradient, tolerance, 1e-6)


def test_the_gradient_of_a_rotation_lies_among_the_rotations(gaussian_engine: Engine) -> None:
    case = CASES["rolling"]
    found = run(gaussian_engine, case, expected("rolling")[2]).gradients
    for end, matrix in (("", START), ("_end", END)):
        rotation, translation = matrix[:3, :3], matrix[:3, 3]
        skew = found["camera_rotation" + end][0] @ rotation.T
        turn = np.array([skew[2, 1] - skew[1, 2], skew[0, 2] - skew[2, 0], skew[1, 0] - skew[0, 1]])
        push = found["camera_translation" + end][0]
        pose6 = np.concatenate([push, turn + np.cross(translation, push)])
        assert_relative("pose" + end, found["camera_pose" + end][0], pose6, 1e-4)
        np.testing.assert_allclose(skew, -skew.T, atol=1e-5 * np.abs(skew).max())


def test_gsplat_semantics_send_no_gradient_through_the_projection(gaussian_engine: Engine) -> None:
    case = replace(CASES["rolling"], settings={"semantics": "gsplat"})
    upstream = expected("rolling")[2]
    found = run(gaussian_engine, case, upstream).gradients
    for name in ("quats", "scales", "camera_intrinsics"):
        assert not found[name].any(), name
    exact = run(gaussian_engine, CASES["rolling"], upstream).gradients
    for name in ("opacities", "sh"):
        np.testing.assert_allclose(found[name], exact[name], rtol=1e-4, atol=1e-5)
    # Gradients arrive through the directions of the harmonics: at the means, and half of the opposite at each centre.
    assert found["means"].any()
    centre = -found["means"].sum(0) / 2
    for end, matrix in (("", START), ("_end", END)):
        push = -matrix[:3, :3] @ centre
        assert_relative("camera_translation" + end, found["camera_translation" + end][0], push, 1e-3)


def test_equal_poses_are_those_of_a_global_shutter(gaussian_engine: Engine) -> None:
    still = CASES["pinhole"]
    case = replace(still, end=still.start, shutter="bottom_to_top")
    upstream = expected("pinhole")[2]
    rolling, steady = run(gaussian_engine, case, upstream), run(gaussian_engine, still, upstream)
    for name in OUTPUTS:
        assert_image(rolling.outputs[name], steady.outputs[name], 2e-5)
    both = rolling.gradients["camera_pose"] + rolling.gradients["camera_pose_end"]
    assert_relative("camera_pose", both, steady.gradients["camera_pose"], 1e-3)


# Some sigma points lie beyond the margin, a tenth of the image's height above it, for y around -2.40.
@pytest.mark.parametrize("y", [-2.2, -2.35, -2.41, -2.45])
def test_a_gaussian_across_the_margin_does_not_smear(y: float, gaussian_engine: Engine) -> None:
    ball = Gaussians(
        means=torch.tensor([[0.0, y, 5.0]]), quats=torch.tensor([[1.0, 0, 0, 0]]), scales=torch.full((1, 3), 0.3),
        opacities=torch.tensor([0.9]), colors=torch.ones(1, 3),
    )  # fmt: skip
    radii = {}
    for domain in ("monotone", "gsplat"):
        lens = PinholeLens(fx=60.0, fy=60.0, cx=32.0, cy=24.0, domain=domain)
        moving = {"shutter": "top_to_bottom", "end_rotation": np.eye(3), "end_translation": np.array([-0.02, 0, 0])}
        seen = gaussians.Camera.sensor(lens, np.eye(3), np.zeros(3), 64, 48, **moving)
        found, _ = gaussian_engine.forward(ball, [seen], Settings(), outputs=("radii", "means2d"))
        radii[domain] = found["radii"][0, 0, 0]
        if domain == "monotone":
            # The Gaussian moves by a quarter of a pixel during the exposure.
            assert abs(found["means2d"][0, 0, 0] - 32.0) < 0.25
    assert radii["monotone"] == 13
    assert (radii["gsplat"] > 20) == (y < -2.3)


@pytest.mark.parametrize("side", [1, -1])
def test_gaussians_far_outside_of_a_turning_view_stay_there(side: int, gaussian_engine: Engine) -> None:
    """Some Gaussians cross the camera's plane if its turn is continued beyond the exposure."""
    random, count = torch.Generator().manual_seed(1), 2000
    angle = torch.deg2rad(60 + 25 * torch.rand(count, generator=random))
    along, depth = 2 * torch.rand(count, generator=random) - 1, 1 + 4 * torch.rand(count, generator=random)
    far = Gaussians(
        means=torch.stack([depth * along, side * depth * torch.tan(angle), depth], 1),
        quats=torch.tensor([[1.0, 0, 0, 0]]).repeat(count, 1), scales=torch.full((count, 3), 0.01),
        opacities=torch.full((count,), 0.9), colors=torch.ones(count, 3),
    )  # fmt: skip
    lens = PinholeLens(fx=60.0, fy=60.0, cx=32.0, cy=24.0)
    for turn in (0.02, -0.02, 0.1, -0.1, -0.3):
        end = rotation_about(np.array([turn, 0.0, 0.0]))
        turning = {"shutter": "top_to_bottom", "end_rotation": end, "end_translation": np.zeros(3)}
        seen = gaussians.Camera.sensor(lens, np.eye(3), np.zeros(3), 64, 48, **turning)
        found, _ = gaussian_engine.forward(far, [seen], Settings(), outputs=("radii", "alpha"))
        assert not found["radii"].any() and not found["alpha"].any(), turn


def test_two_cameras_are_as_two_calls(gaussian_engine: Engine) -> None:
    cases = [CASES["rolling up"], replace(CASES["opencv"], settings=CASES["rolling up"].settings)]
    settings = Settings(**cases[0].settings)
    upstream = expected("rolling up")[2]
    both, state = gaussian_engine.forward(
        Gaussians(**cases[0].scene), [case.camera() for case in cases], settings, outputs=OUTPUTS, retain=True
    )
    stacked = {name: torch.stack([v, v]) for name, v in upstream.items()}
    gradients = gaussian_engine.backward(state, stacked, ("means", "cameras", "lenses"))[0]
    single = [run(gaussian_engine, case, upstream) for case in cases]
    for view, made in enumerate(single):
        for name in OUTPUTS:
            np.testing.assert_allclose(both[name][view], made.outputs[name], rtol=1e-6, atol=1e-6)
        for name in ("camera_pose", "lens_radial", "camera_pose_end"):
            assert_relative(name, gradients[name][view], made.gradients[name][0], 1e-4, 1e-6)
    assert_relative("means", gradients["means"], single[0].gradients["means"] + single[1].gradients["means"], 1e-4)


@pytest.mark.parametrize("method", ["unscented", "jacobian"])
@pytest.mark.parametrize(
    ("behind", "order", "limit"), [(True, "distance", 2.2), (True, "z", np.pi / 2), (False, "distance", np.pi / 2)]
)
def test_fisheyes_show_what_is_behind_them_if_told_to(
    method: str, behind: bool, order: str, limit: float, gaussian_engine: Engine
) -> None:
    """The Gaussians are much smaller than pixels, at several angles from the axis, in directions all around it."""
    degrees, sides = np.meshgrid([60, 89, 91, 100, 110, 125, 127, 150], np.linspace(0, 6, 9))
    angle, side = np.radians(degrees.ravel()), sides.ravel()
    around = np.stack([np.cos(side), np.sin(side)], -1)
    points = 5 * np.concatenate([np.sin(angle)[:, None] * around, np.cos(angle)[:, None]], -1)
    count = len(points)
    small = Gaussians(
        means=torch.tensor(points).float(),
        quats=torch.tensor([[1.0, 0.0, 0.0, 0.0]]).expand(count, 4),
        scales=torch.full((count, 3), 1e-5),
        opacities=torch.ones(count),
        colors=torch.zeros(count, 1),
    )
    lens = replace(WIDE_FISHEYE, cx=32.0, cy=31.0, behind=behind)
    camera = gaussians.Camera.sensor(lens, np.eye(3), np.zeros(3), 64, 64)
    settings = Settings(projection_method=method, depth_order=order)
    outputs = gaussian_engine.forward(small, [camera], settings, outputs=("means2d", "radii"))[0]
    shown = outputs["radii"][0].numpy().any(-1)
    np.testing.assert_array_equal(shown, angle < limit)
    distance = np.polynomial.Polynomial([0, 1, 0, *(c for k in lens.radial for c in (k, 0))])(angle)
    pixels = distance[:, None] * around * [lens.fx, lens.fy] + [lens.cx, lens.cy]
    assert_image(outputs["means2d"][0].numpy()[shown], pixels[shown], 1e-4)


EXTREMES = {
    "axis": {"means": [[0.0, 0.0, 3.0], [0.0, 0.0, 4.0]]},
    "behind": {"means": [[0.1, 0.1, -3.0], [0.1, 0.0, 4.0]]},
    "camera plane": {"means": [[0.3, 0.2, 0.02], [0.1, 0.0, 4.0]], "scales": [[2.0, 2.0, 2.0], [0.3, 0.3, 0.3]]},
    "huge": {"scales": [[1e4, 1e3, 1e4], [1e-6, 1e-6, 1e-6]]},
    "flat": {"scales": [[0.5, 0.5, 0.0], [0.3, 0.0, 0.0]]},
    "far": {"means": [[1e8, -1e8, 1e8], [0.1, 0.0, 1e9]]},
    "saturated": {"opacities": [1.0, 1.0]},
    "invisible": {"opacities": [0.0, 0.001]},
    "no direction": {"quats": [[0.0, 0.0, 0.0, 0.0], [1e-20, 0.0, 0.0, 0.0]]},
}


@pytest.mark.parametrize("extreme", EXTREMES)
@pytest.mark.parametrize(
    "name",
    ["opencv", "rolling fisheye", "wide fisheye", "rolling up", "staircase", "ftheta", "windshield by the Jacobian",
     "inverse ftheta by the Jacobian"],
)  # fmt: skip
def test_extreme_scenes_give_finite_results(name: str, extreme: str, gaussian_engine: Engine) -> None:
    tensors = {
        "means": [[0.1, -0.2, 3.0], [0.1, 0.0, 4.0]],
        "quats": [[1.0, 0.2, 0.0, 0.0], [1.0, 0.0, 0.0, 0.3]],
        "scales": [[0.3, 0.2, 0.4], [0.3, 0.3, 0.3]],
        "opacities": [0.7, 0.8],
        "colors": [[0.2, 0.4, 0.6], [0.9, 0.8, 0.7]],
        **EXTREMES[extreme],
    }
    small = {key: torch.tensor(value, dtype=torch.float32) for key, value in tensors.items()}
    start = np.eye(4) if extreme == "axis" else START
    for bounds in ("conservative", "gsplat"):
        method = ALL[name].settings.get("projection_method", "unscented")
        settings = {"tile_bounds": bounds, "projection_method": method}
        case = replace(ALL[name], scene=small, start=start, settings=settings)
        images = {key: v for key, v in expected(name)[2].items() if key != "inverse_depth"}
        made = run(gaussian_engine, case, images)
        for key, value in {**made.outputs, **made.gradients}.items():
            assert np.isfinite(value).all(), f"{key} with {bounds}"


def test_gsplat_differentiates_its_projection_by_the_jacobian(gaussian_engine: Engine) -> None:
    case = JACOBIAN_CASES["pinhole by the Jacobian"]
    upstream = expected(case.name)[2]
    exact = run(gaussian_engine, case, upstream).gradients
    found = run(gaussian_engine, replace(case, settings={**case.settings, "semantics": "gsplat"}), upstream).gradients
    for name in ("means", "quats", "scales", "camera_pose"):
        np.testing.assert_allclose(found[name], exact[name], rtol=1e-5, atol=1e-6)


def test_a_barrel_shows_its_corners_only_in_the_monotone_domain() -> None:
    barrel = PinholeLens(fx=24.0, fy=24.0, cx=24.0, cy=18.0, radial=(-0.3, 0.1))
    corner = scene(1)
    # The corner is within the image, where the distortion's factor is below 0.8.
    corner["means"] = torch.tensor([[4.4, 0.0, 4.0]])
    corner["scales"] = torch.full((1, 3), 0.1)
    for domain, shown in (("monotone", True), ("gsplat", False)):
        case = SensorCase("corner", replace(barrel, domain=domain), corner, np.eye(4))
        alpha = cpu().forward(Gaussians(**corner), [case.camera()], Settings(), outputs=("alpha",))[0]["alpha"]
        assert bool((alpha > 0.05).any()) is shown, domain
