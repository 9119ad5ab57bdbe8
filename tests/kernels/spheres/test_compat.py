"""Compat semantics against our own rendition of the original, with a scene for each of its known behaviours."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from support.backends.engines import Engine
from support.closeness import assert_image, assert_of_maximum
from support.spheres import compat_backward, compat_reference
from support.spheres.case import Floats, SphereCase, sphere_ids
from support.spheres.cases import build, compat_cases
from support.spheres.runs import camera_of, run, wanted_of

CASES = {case.name: case for case in compat_cases()}


@cache
def expected(name: str) -> tuple[compat_reference.Rendered, dict[str, Floats]]:
    case = CASES[name]
    rendered = compat_reference.render(case)
    gradients = compat_backward.gradients(case, rendered)
    gradients["cameras"] = compat_backward.camera_gradient(case, gradients)[None]
    return rendered, gradients


def gradient_tolerance(name: str, case: SphereCase) -> float:
    """Exponents of 1e4 leave little precision, and the rounding of rectangles affects gradients of cameras."""
    return 1e-3 if case.gamma < 1e-3 or name == "cameras" else 1e-4


@pytest.mark.parametrize("name", CASES)
def test_image_info_and_gradients_are_the_originals(name: str, engine: Engine) -> None:
    case, (rendered, gradients) = CASES[name], expected(name)
    wanted = () if case.hits_only else wanted_of(case)
    names = ("color", "info", "hits", "sphere_ids", "depth")
    result = run(engine, case, "compat", outputs=names, wanted=wanted)
    outputs = result.outputs
    np.testing.assert_array_equal(outputs["hits"][0], rendered.hits)
    if case.hits_only:
        return
    assert_image(outputs["color"][0], rendered.image)
    info = outputs["info"][0]
    np.testing.assert_array_equal(sphere_ids(info), sphere_ids(rendered.info))
    np.testing.assert_array_equal(outputs["sphere_ids"][0], sphere_ids(rendered.info))
    numbers = [0, 1, 2, *range(4, info.shape[-1], 2)]
    # The tolerance is relative for large numbers: at a gamma of 1e-4 the maximum exponent is 1e4.
    np.testing.assert_allclose(info[..., numbers], rendered.info[..., numbers], rtol=1e-6, atol=1e-5)
    assert_image(outputs["depth"][0], rendered.info[..., 4])
    for key in wanted:
        assert_of_maximum(key, result.gradients[key], gradients[key], gradient_tolerance(key, case))


@pytest.mark.parametrize("name", ["perspective_posed", "one_tracked", "about_a_pixel", "crowd_difference_0.2"])
def test_touched_counts_the_pixels_in_which_a_sphere_was_tracked(name: str, engine: Engine) -> None:
    case, (rendered, _) = CASES[name], expected(name)
    touched = run(engine, case, "compat", wanted=("colors",)).touched
    ids = sphere_ids(rendered.info)
    np.testing.assert_array_equal(touched, np.bincount(ids[ids >= 0], minlength=len(case.radii)))


def test_fully_tracked_shares_and_background_add_up(engine: Engine) -> None:
    case = CASES["perspective_posed"]
    outputs = run(engine, case, "compat", outputs=("weights", "alpha", "sphere_ids")).outputs
    weights, alpha, ids = outputs["weights"][0], outputs["alpha"][0], outputs["sphere_ids"][0]
    assert weights.shape == ids.shape
    assert (weights[ids < 0] == 0).all()
    assert (weights >= 0).all()
    # The original's exponential is off by up to 4%, and so are the shares.
    assert_image(weights.sum(-1), alpha, 0.05)


def test_gradients_of_several_cameras_are_summed(engine: Engine) -> None:
    cases = [
        build("several", camera=(0.1 * index, 0.0, 0.2, 0.0, 0.05 * index, 0.0, 4.0, 2.0), output_gradient=upstream)
        for index, upstream in enumerate(np.random.default_rng(5).standard_normal((3, 44, 44, 3)).astype(np.float32))
    ]
    stacked = np.stack([case.output_gradient for case in cases])
    wanted = wanted_of(cases[0])
    result = run(
        engine, cases[0], "compat", outputs=("color", "info"), wanted=wanted, output_gradients={"color": stacked},
        cameras=[camera_of(case) for case in cases],
    )  # fmt: skip
    sums: dict[str, Floats] = {}
    for index, case in enumerate(cases):
        rendered = compat_reference.render(case)
        assert_image(result.outputs["color"][index], rendered.image)
        gradients = compat_backward.gradients(case, rendered)
        camera = compat_backward.camera_gradient(case, gradients)
        assert_of_maximum("cameras", result.gradients["cameras"][index], camera, 1e-3)
        for name in ("positions", "colors", "radii"):
            sums[name] = sums.get(name, 0) + gradients[name]
    for name, total in sums.items():
        assert_of_maximum(name, result.gradients[name], total)
