"""Inria's semantics: squares of tiles, raw quaternions, another stopping rule; and the depth fork's gradients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from support.backends import emulation
from support.backends.gaussian_engines import Engine
from support.closeness import assert_image, assert_relative, assert_same_bits
from support.gaussians.case import GaussianCase, InriaView
from support.gaussians.cases import Cloud, build, inria, inria_cases, opencv, upstream_of
from support.gaussians.reference_runs import ReferenceScene
from support.gaussians.runs import OUTPUTS, run

CASES = {case.name: case for case in inria_cases()}
LOSS = ("color", "transmittance", "depth")
SETTINGS = {"semantics": "inria_exact", "near": 0.2, "pixel_center": 0.0}


def level(width: int, height: int, slope: float) -> InriaView:
    """A camera at the origin that looks along +z."""
    view = inria(width, height, slope=slope)
    projection = np.zeros((4, 4))
    projection[0, 0], projection[1, 1], projection[2, 2], projection[2, 3] = 1 / slope, width / (slope * height), 1, 1
    return replace(view, view=np.eye(4), projection=projection, position=np.zeros(3))


def with_semantics(case: GaussianCase, semantics: str) -> GaussianCase:
    return replace(case, options=replace(case.options, semantics=semantics))


@pytest.mark.parametrize("name", CASES)
def test_the_forks_gradients_are_the_references(name: str, gaussian_engine: Engine) -> None:
    case = with_semantics(CASES[name], "inria_depth")
    scene = ReferenceScene(case)
    upstream = scene.forward().masked(upstream_of(case, LOSS))
    result = run(gaussian_engine, case, outputs=LOSS, upstream=upstream)
    expected = scene.reference(upstream).gradients
    assert set(result.gradients) == set(expected)
    for key, gradient in expected.items():
        # The fork has no gradients of cameras.
        if not key.startswith("camera_"):
            assert_relative(key, result.gradients[key], gradient, 1e-4, 1e-7)


@pytest.mark.parametrize("name", CASES)
def test_both_ways_to_differentiate_see_the_same_picture(name: str, gaussian_engine: Engine) -> None:
    case = CASES[name]
    exact = run(gaussian_engine, case, outputs=OUTPUTS).outputs
    fork = run(gaussian_engine, with_semantics(case, "inria_depth"), outputs=OUTPUTS).outputs
    assert_same_bits(fork, exact)


def single(**changes: object) -> GaussianCase:
    """A round Gaussian in the middle of the second of three tiles in a row."""
    values: dict[str, object] = {
        "means": [[0.0, 0.0, 4.0]],
        "quats": [[1.0, 0.0, 0.0, 0.0]],
        "scales": [[0.25] * 3],
        "opacities": [0.9],
        "width": 48,
        "height": 16,
        "cameras": (level(48, 16, 0.5),),
        **SETTINGS,
    }
    return build("single", Cloud(count=1), **{**values, **changes})


def test_a_gaussian_ends_with_the_tiles_that_its_square_touches(gaussian_engine: Engine) -> None:
    # With a sigma of 3 px, its square of 10 px reaches into all three tiles; half of that stays in the middle one.
    outputs = run(gaussian_engine, single(scales=[[0.125] * 3]), outputs=("alpha", "radii")).outputs
    radius = int(outputs["radii"][0, 0, 0])
    assert radius == int(np.ceil(3 * np.sqrt(1.5**2 + 0.3 + np.sqrt(0.1))))
    assert outputs["alpha"][0, :, 16:32].max() > 0.8
    # The Gaussian would be seen 4 sigma away, where 0.9 exp(-8) is beyond 1 / 255 only within 3.3 sigma.
    wide = single(scales=[[0.1875] * 3], opacities=[1.0], means=[[-0.02, 0.0, 4.0]])
    square = run(gaussian_engine, wide, outputs=("alpha", "radii")).outputs
    free = replace(
        with_semantics(wide, "exact"),
        cameras=(opencv(intrinsics=np.array([48.0, 48.0, 23.5, 7.5]), rotation=np.eye(3), translation=np.zeros(3)),),
    )
    whole = run(gaussian_engine, free, outputs=("alpha",)).outputs["alpha"]
    tile = np.arange(48) // 16
    centre = 23.5 - 48 * 0.02 / 4
    reach = int(square["radii"][0, 0, 0])
    touched = (tile >= int((centre - reach) / 16)) & (tile < int((centre + reach + 15) / 16))
    assert_image(square["alpha"][0][:, touched], whole[0][:, touched], 1e-5)
    assert not square["alpha"][0][:, ~touched].any()


def test_quaternions_are_taken_as_they_are(gaussian_engine: Engine) -> None:
    case = single(quats=[[0.9, 0.2, -0.3, 0.1]], scales=[[0.3, 0.1, 0.05]])
    assert case.quats is not None
    longer = replace(case, quats=case.quats * np.float32(1.3))
    alphas = [run(gaussian_engine, each, outputs=("alpha",)).outputs["alpha"] for each in (case, longer)]
    assert np.abs(alphas[0] - alphas[1]).max() > 0.05
    view = (opencv(intrinsics=np.array([48.0, 48.0, 23.5, 7.5]), rotation=np.eye(3), translation=np.zeros(3)),)
    plain = [replace(with_semantics(each, "exact"), cameras=view) for each in (case, longer)]
    alphas = [run(gaussian_engine, each, outputs=("alpha",)).outputs["alpha"] for each in plain]
    assert_image(alphas[0], alphas[1], 1e-6)


def test_a_pixel_may_reach_the_limit_but_not_go_below(gaussian_engine: Engine) -> None:
    # Three Gaussians each let through a half, exactly at the pixel's centre; the limit is a quarter.
    if gaussian_engine.name == "emulation":
        emulation.load("_emulation").set_error_seed(0)
    stack = {
        "means": [[0.0, 0.0, 4.0 + k] for k in range(3)],
        "quats": [[1.0, 0.0, 0.0, 0.0]] * 3,
        "scales": [[1.0] * 3] * 3,
        "opacities": [0.5] * 3,
        "width": 1,
        "height": 1,
        "transmittance_min": 0.25,
    }
    case = build("halves", Cloud(count=3), **{**stack, **SETTINGS, "cameras": (level(1, 1, 0.5),)})
    assert run(gaussian_engine, case, outputs=("contributors",)).outputs["contributors"].item() == 2
    view = opencv(rotation=np.eye(3), translation=np.zeros(3), intrinsics=np.array([1.0, 1.0, 0.5, 0.5]))
    other = build("halves", Cloud(count=3), **{**stack, "cameras": (view,)})
    assert run(gaussian_engine, other, outputs=("contributors",)).outputs["contributors"].item() == 1


def test_the_forks_opaque_gaussians_are_pushed(gaussian_engine: Engine) -> None:
    # The Gaussian is wider than the film: alpha is clamped in every pixel, and its true derivative is 0.
    case = single(scales=[[60.0] * 3], opacities=[1.0])
    upstream = {"color": np.ones((1, 16, 48, 3), np.float32)}
    exact = run(gaussian_engine, case, upstream=upstream)
    fork = run(gaussian_engine, with_semantics(case, "inria_depth"), upstream=upstream)
    assert exact.outputs["color"].min() >= 0 and not exact.gradients["opacities"].any()
    color = case.colors.astype(np.float64).sum()  # type: ignore[union-attr]
    assert_relative("opacities", fork.gradients["opacities"], [16 * 48 * color], 1e-3)
