"""`render_gaussians` through a real worker against the float64 reference: images, and gradients of every input."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lumigrad.client import Client
from support.closeness import assert_image, assert_relative
from support.gaussians.case import Doubles
from support.gaussians.cases import gsplat_cases, upstream_of
from support.gaussians.drop_ins import ABSENT, files
from support.gaussians.operator import operate
from support.gaussians.oracle import load
from support.gaussians.reference_runs import ReferenceScene

CASES = {case.name: case for case in gsplat_cases()}
# Those in which the operator has something to do; the kernels are tested with all.
NAMES = (
    "covariances",
    "degree_2_of_3",
    "orthographic",
    "distorted",
    "sheared",
    "three_cameras",
    "colors_per_view",
    "batch",
    "batch_colors_per_view",
    "alpha_max",
    "whole_pixels",
    "scale_modifier",
    "slices",
)
FILES = files("g*")
IMAGES = ("color", "alpha", "transmittance", "depth", "expected_depth", "inverse_depth")


def masked(stable: Doubles, values: Doubles) -> Doubles:
    return np.where(stable.reshape(*stable.shape, *[1] * (values.ndim - stable.ndim)), values, 0)


@pytest.mark.parametrize("name", NAMES)
def test_images_and_gradients_are_the_reference_s(name: str, client: Client) -> None:
    case = CASES[name]
    scene = ReferenceScene(case)
    upstream = scene.forward().masked(upstream_of(case, IMAGES))
    expected = scene.reference(upstream)
    operated = operate(client, case, upstream)
    stable = expected.stacked("stable")
    for output in IMAGES:
        image = expected.stacked(output)
        found = getattr(operated.result, output).detach().numpy().reshape(image.shape)
        assert_image(masked(stable, found), masked(stable, image), 1e-5 * max(1.0, float(np.abs(image).max())))
    for gradient, values in operated.gradients.items():
        assert_relative(f"{name} {gradient}", values, expected.gradients[gradient].reshape(values.shape))
    missing = (
        set(expected.gradients) - set(operated.gradients) - {"background", "means2d", "means2d_abs", "camera_pose"}
    )
    assert not missing


@pytest.mark.parametrize("name", ["three_cameras", "batch", "slices"])
def test_a_loss_on_the_projected_centres_adds_to_that_on_the_images(name: str, client: Client) -> None:
    case = CASES[name]
    scene = ReferenceScene(case)
    upstream = scene.forward().masked(upstream_of(case, ("color",)))
    generator = np.random.default_rng(0)
    on_centres = generator.normal(size=(len(case.cameras), case.count, 2)).astype(np.float32)
    visible = operate(client, case, {"color": upstream["color"]}, ("radii",)).result.radii.numpy() > 0
    on_centres *= visible.reshape(on_centres.shape)
    expected = scene.reference(upstream, on_centres)
    operated = operate(client, case, {**upstream, "means2d": on_centres})
    for gradient, values in operated.gradients.items():
        assert_relative(f"{name} {gradient}", values, expected.gradients[gradient].reshape(values.shape))


@pytest.mark.skipif(not FILES, reason=ABSENT)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_files_in_double_precision_are_reproduced(path: Path, client: Client) -> None:
    oracle = load(path)
    operated = operate(client, oracle.case, oracle.upstream, ("radii",), semantics="exact")
    np.testing.assert_array_equal(operated.result.radii, oracle.radii)
    for name in oracle.upstream:
        image = oracle.images[name]
        found = getattr(operated.result, name).detach().numpy()
        assert_image(masked(oracle.stable, found), masked(oracle.stable, image), 1e-5 * max(1.0, np.abs(image).max()))
    compared = set(operated.gradients) & set(oracle.gradients)
    assert {*oracle.case.tensors, "camera_rotation", "camera_translation"} <= compared
    for name in compared:
        # A single round Gaussian does not turn: its gradient is rounding.
        noise = 1e-5 if (path.stem, name) == ("g01_single", "quats") else 0.0
        assert_relative(f"{path.stem} {name}", operated.gradients[name], oracle.gradients[name], noise=noise)
