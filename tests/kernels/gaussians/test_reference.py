"""The float64 reference itself: closed forms, finite differences, and cases computed elsewhere."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from lumigrad.kernels.gaussians import lens
from support.closeness import assert_image, assert_relative
from support.gaussians.cases import DISTORTION, RATIONAL, Cloud, build, gsplat_cases, opencv, upstream_of
from support.gaussians.colors import harmonics
from support.gaussians.projection import distorted, unfolded_radius_squared
from support.gaussians.reference_runs import ReferenceScene

CASES = {case.name: case for case in gsplat_cases()}
LEVEL = opencv(rotation=np.eye(3), translation=np.zeros(3), intrinsics=np.array([20.0, 20.0, 2.5, 2.5]))
# The step of central differences, which the margins of branches exceed.
STEP = 1e-6


def test_harmonics_have_the_signs_and_factors_of_trained_scenes() -> None:
    x, y, z = direction = np.array([0.36, -0.48, 0.8])
    values = harmonics(4, torch.from_numpy(direction)).numpy()
    known = {
        0: 0.28209479177387814,
        1: -0.4886025119029199 * y,
        2: 0.4886025119029199 * z,
        3: -0.4886025119029199 * x,
        5: -1.0925484305920792 * y * z,
        6: 0.31539156525252005 * (2 * z * z - x * x - y * y),
        8: 0.5462742152960396 * (x * x - y * y),
        9: -0.5900435899266435 * y * (3 * x * x - y * y),
        12: 0.3731763325901154 * z * (2 * z * z - 3 * x * x - 3 * y * y),
        15: -0.5900435899266435 * x * (x * x - 3 * y * y),
        16: 2.5033429417967046 * x * y * (x * x - y * y),
        20: 0.10578554691520431 * (35 * z**4 - 30 * z * z + 3),
        23: -1.7701307697799304 * x * z * (x * x - 3 * y * y),
    }
    for index, value in known.items():
        assert values[index] == pytest.approx(value, abs=1e-14), index


def test_one_round_gaussian_has_its_closed_form() -> None:
    size, opacity = 0.25, 0.5
    case = build(
        "closed form", Cloud(count=1), means=[[0.0, 0.0, 4.0]], scales=[[size] * 3], opacities=[opacity],
        colors=[[0.25, 0.5, 0.75]], background=(0.5, 0.25, 0.125), width=5, height=5, cameras=(LEVEL,),
    )  # fmt: skip
    frame = ReferenceScene(case).frames[0]
    variance = (20 * size / 4) ** 2 + 0.3
    y, x = np.mgrid[:5, :5] + 0.5
    alpha = opacity * np.exp(-((x - 2.5) ** 2 + (y - 2.5) ** 2) / (2 * variance))
    assert_image(frame.alpha.detach(), alpha, 1e-14)
    assert_image(frame.depth.detach(), 4 * alpha, 1e-14)
    assert_image(frame.expected_depth.detach(), np.full((5, 5), 4.0), 1e-13)
    assert_image(frame.inverse_depth.detach(), alpha / 4, 1e-14)
    color = alpha[..., None] * [0.25, 0.5, 0.75] + (1 - alpha[..., None]) * [0.5, 0.25, 0.125]
    assert_image(frame.color.detach(), color, 1e-14)
    reach = math.ceil(math.sqrt(2 * math.log(255 * opacity) * variance))
    assert frame.radii.tolist() == [[reach, reach]]


def test_light_passes_from_front_to_back_until_too_little_is_left() -> None:
    count = 6
    case = build(
        "stack", Cloud(count=count), means=[[0.0, 0.0, 4.0 + 0.5 * index] for index in reversed(range(count))],
        scales=[[50.0] * 3] * count, opacities=[0.95] * count, colors=np.eye(count), width=1, height=1,
        cameras=(opencv(rotation=np.eye(3), translation=np.zeros(3), intrinsics=np.array([20.0, 20.0, 0.5, 0.5])),),
    )  # fmt: skip
    frame = ReferenceScene(case).frames[0]
    # 0.05^4 is below the limit of 1e-4: the fourth is left out and ends the pixel.
    assert int(frame.contributors) == 3
    color = frame.color.detach().numpy()[0, 0]
    assert_image(color[::-1], [0.95, 0.05 * 0.95, 0.05**2 * 0.95, 0, 0, 0], 1e-6)
    faintest = replace(case, options=replace(case.options, transmittance_min=0.0))
    assert int(ReferenceScene(faintest).frames[0].contributors) == 6


FOLDING = [DISTORTION, RATIONAL, (-0.3, 0.02), (-0.25,), (0.4, -0.2), (-0.3, 0.1, 0, 0, -0.05), (0, 0, 0, 0, 0, -0.5)]


@pytest.mark.parametrize("coefficients", [*FOLDING, (0.1, 0.02, 0, 0, 0.3, 0.5, 0.2, 0.9), (0.2, 0.01, 0.3, 0.1)])
def test_a_distortion_folds_back_where_its_radius_stops_growing(coefficients: tuple[float, ...]) -> None:
    """The engine's limit is the same; tangential coefficients set none."""
    whole = (*coefficients, *(0.0,) * (8 - len(coefficients)))
    limit = unfolded_radius_squared(whole)
    assert lens.max_radius_squared(whole) == pytest.approx(limit, rel=1e-9)
    radii = np.linspace(0, min(math.sqrt(limit), 20) * (1 - 1e-9), 10000)
    radial = (*whole[:2], 0.0, 0.0, *whole[4:])
    seen = distorted(torch.from_numpy(np.stack([radii, 0 * radii], -1)), radial)[:, 0].numpy()
    assert (np.diff(seen) > 0).all()
    if math.isfinite(limit):
        beyond = distorted(torch.tensor([[math.sqrt(limit) * 1.01, 0.0]], dtype=torch.float64), radial)
        assert float(beyond[0, 0]) < seen[-1]


def test_poses_are_turned_about_the_camera() -> None:
    case = CASES["rgb"]
    view = case.cameras[0]
    scene = ReferenceScene(case)
    upstream = scene.forward().masked(upstream_of(case))
    pose = np.eye(4)
    pose[:3, :3], pose[:3, 3] = view.rotation, view.translation
    slopes = []
    for axis in range(6):
        losses = []
        for sign in (1, -1):
            change = np.zeros(6)
            change[axis] = sign * STEP
            rho, (x, y, z) = change[:3], change[3:]
            twist = np.zeros((4, 4))
            twist[:3] = np.column_stack([[[0, -z, y], [z, 0, -x], [-y, x, 0]], rho])
            turned = torch.linalg.matrix_exp(torch.from_numpy(twist)).numpy() @ pose
            changed = replace(view, rotation=turned[:3, :3], translation=turned[:3, 3])
            frames = ReferenceScene(replace(case, cameras=(changed,))).forward()
            losses.append(float(sum((frames.stacked(key) * weights).sum() for key, weights in upstream.items())))
        slopes.append((losses[0] - losses[1]) / (2 * STEP))
    assert_relative("camera_pose", scene.reference(upstream).gradients["camera_pose"], [slopes], 1e-6)
