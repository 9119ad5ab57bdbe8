"""Inria's semantics: squares of tiles, raw quaternions, another stopping rule; and the depth fork's gradients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from support.backends import emulation
from support.backends.gaussian_engines import Engine
from support.closeness import assert_relative, assert_same_bits
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
