"""Slices that move during an exposure: images and every gradient as the reference computes them, on each engine."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.gaussians import Camera, Gaussians, Settings, Transform, backward, forward
from lumigrad.kernels.gaussians.transforms import cut, poses
from support.backends.gaussian_engines import Engine
from support.closeness import assert_image, assert_relative
from support.gaussians import lidars
from support.gaussians.sensor_cases import (
    CASES,
    MATRICES,
    RAY_CASES,
    SLICES,
    Known,
    SensorCase,
    assert_as_known,
    given_rays,
    known,
    pose,
    pose6_of,
    reference,
    run,
)

BEGIN, END, COUNT = 8, 24, 40
NAMES = ("rolling", "rolling fisheye", "rolling up", "staircase")
ON_FILM = {name: replace(CASES[name], transforms=SLICES) for name in NAMES}
ON_RAYS = {f"{name} on rays": replace(RAY_CASES[name], transforms=SLICES) for name in NAMES}
ON_RAYS["given rays"] = replace(ON_RAYS["rolling up on rays"], rays=given_rays())
ALL = {**ON_FILM, **ON_RAYS}
# The half of the Gaussians in front of the lidar, as a track would be.
ARC = Transform(10, 40, pose(0.0, 0.0, 0.1, (0.1, 0.2, 0.0)), pose(0.05, 0.0, -0.1, (-0.3, 0.1, 0.1)))


@cache
def expected(name: str) -> Known:
    return known(*reference(ALL[name]))


def assert_as(case: SensorCase, engine: Engine, expects: Known, wanted: tuple[str, ...]) -> None:
    found = assert_as_known(case, engine, expects, wanted, least_stable=0.8)
    for name in MATRICES:
        for k, transform in enumerate(case.transforms):
            matrix = transform.matrix if name == "transforms" else transform.matrix_end
            actual = found.gradients[name][k]
            if matrix is None:
                assert not actual.any(), "no end, no gradient"
                continue
            assert_relative(f"{name}[{k}]", pose6_of(actual, matrix), expects[1][name][k], 1e-3, 1e-6)
            assert not actual[3].any()


@pytest.mark.parametrize("name", ALL)
def test_moving_slices_are_those_of_the_reference(name: str, gaussian_engine: Engine) -> None:
    wanted = ("means", "quats", "scales", "opacities", "cameras", "lenses")
    assert_as(ALL[name], gaussian_engine, expected(name), wanted)


@cache
def expected_of_lidar() -> tuple[SensorCase, Known]:
    case = replace(lidars.CASES["moving by steps"], transforms=(ARC,))
    return case, known(*lidars.reference_of_lidar(case))


def test_moving_slices_before_a_lidar_are_those_of_the_reference(gaussian_engine: Engine) -> None:
    case, expects = expected_of_lidar()
    assert_as(case, gaussian_engine, expects, ("means", "quats", "scales", "opacities", "cameras", "lenses"))


@pytest.mark.parametrize("name", ["rolling up", "rolling up on rays"])
def test_gradients_of_both_poses_are_slopes_of_the_loss(name: str, gaussian_engine: Engine) -> None:
    settings = {**ALL[name].settings, "alpha_min": 1e-7, "transmittance_min": 0.0}
    base = replace(ALL[name], settings=settings)
    random = torch.Generator().manual_seed(8)
    weights = {"color": torch.rand(36, 48, 3, generator=random), "depth": torch.rand(36, 48, generator=random)}
    step, way = 0.01, np.random.default_rng(3).normal(size=(2, 3))
    first = SLICES[0]

    def loss(sign: float) -> float:
        ends = [first.matrix.copy(), first.matrix_end.copy()]
        for matrix, push in zip(ends, way, strict=True):
            matrix[:3, 3] += sign * step * push
        changed = (Transform(first.begin, first.end, *ends), *SLICES[1:])
        made = run(gaussian_engine, replace(base, transforms=changed), weights, ("opacities",))
        return sum(float((made.outputs[key] * v.double().numpy()).sum()) for key, v in weights.items())

    slope = (loss(1.0) - loss(-1.0)) / (2 * step)
    gradients = run(gaussian_engine, base, weights, ("opacities",)).gradients
    predicted = sum(float((gradients[key][0, :3, 3] * push).sum()) for key, push in zip(MATRICES, way, strict=True))
    assert abs(predicted - slope) < 5e-3 * abs(slope), f"{predicted} instead of {slope}"


def test_several_views_see_their_own_motion(gaussian_engine: Engine) -> None:
    cases = [ON_RAYS["rolling on rays"], replace(ON_RAYS["rolling up on rays"], lens=CASES["rolling"].lens)]
    cases = [replace(case, settings={"response": "ray"}, scene=CASES["rolling"].scene) for case in cases]
    settings = Settings(response="ray")
    upstream = {"color": expected("rolling on rays")[2]["color"]}
    both, state = gaussian_engine.forward(
        Gaussians(**cases[0].scene), [case.camera() for case in cases], settings, transforms=SLICES, retain=True
    )
    stacked = {name: torch.stack([v, v]) for name, v in upstream.items()}
    gradients = gaussian_engine.backward(state, stacked, ("transforms",))[0]
    single = [run(gaussian_engine, case, upstream) for case in cases]
    for view, made in enumerate(single):
        np.testing.assert_allclose(both["color"][view], made.outputs["color"], rtol=1e-6, atol=1e-6)
    for name in MATRICES:
        total = single[0].gradients[name] + single[1].gradients[name]
        assert_relative(name, gradients[name], total, 1e-4, 1e-6)


def test_gsplat_semantics_have_what_leads_through_the_response(gaussian_engine: Engine) -> None:
    upstream = {"color": expected("rolling on rays")[2]["color"]}
    frozen = replace(ON_RAYS["rolling on rays"], settings={"semantics": "gsplat", "response": "ray"})
    found = run(gaussian_engine, frozen, upstream).gradients
    exact = run(gaussian_engine, ON_RAYS["rolling on rays"], upstream).gradients
    for name in MATRICES:
        assert_relative(name, found[name], exact[name], 1e-3, 1e-6)


def test_a_slice_far_from_its_origin_is_placed_exactly(gaussian_engine: Engine) -> None:
    """The track is in the coordinates of a map, whose origin is 2 km away."""
    far = pose(0.0, 0.0, 0.0, (2000.0, 0.0, 0.0))
    case = ON_RAYS["rolling on rays"]
    near = (Transform(BEGIN, END, np.eye(4), pose(0.0, 0.0, 0.0, (0.2, 0.1, 0.0))),)
    tensors = {name: value.clone() for name, value in case.scene.items()}
    tensors["means"][BEGIN:END, 0] -= 2000.0
    shifted = (Transform(BEGIN, END, far, near[0].matrix_end @ far),)
    upstream = {"alpha": torch.ones(36, 48)}
    there = run(gaussian_engine, replace(case, scene=tensors, transforms=shifted), upstream)
    here = run(gaussian_engine, replace(case, transforms=near), upstream)
    assert_image(there.outputs["alpha"], here.outputs["alpha"], 2e-3)


def test_far_from_the_origin_poses_keep_their_precision() -> None:
    camera = Camera.opencv(30.0, 31.0, 16.0, 12.0, np.eye(3), [-1e7, -1e7, -1e7 + 3.0], 32, 24)
    there = poses([camera], cut([Transform(0, 2, pose(0.0, 0.0, 0.0, [1e7] * 3))], 2)).astype(np.float32)
    np.testing.assert_array_equal(there[0, 0, 9:12], [0.0, 0.0, 3.0])


def test_an_end_without_a_rolling_shutter_is_refused() -> None:
    case = CASES["pinhole"]
    tensors, moving = Gaussians(**case.scene), SLICES[:1]
    with pytest.raises(ArgumentError, match="rolling shutter") as caught:
        forward(tensors, [case.camera()], Settings(), transforms=moving)
    assert caught.value.argument == "transforms"
    with pytest.raises(ArgumentError, match="rolling shutter"):
        forward(tensors, [CASES["rolling"].camera(), case.camera()], Settings(), transforms=moving)
    skewed = np.diag([1.0, 1.0005, 1.0, 1.0])
    for start, end in ((skewed, np.eye(4)), (np.eye(4), skewed), (np.eye(4), np.ones((4, 4)))):
        with pytest.raises(ArgumentError, match="transforms"):
            Transform(0, 3, start, end)
    state = forward(tensors, [CASES["rolling"].camera()], Settings(), transforms=SLICES[1:2], retain=True).state
    made = backward(state, {"color": torch.ones(1, 36, 48, 3)}, ("transforms",)).gradients
    assert set(made) == {"transforms"}, "there is no end without a matrix_end"
