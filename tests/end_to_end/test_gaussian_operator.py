"""`render_gaussians` through a real worker against the float64 reference: images, and gradients of every input."""

from __future__ import annotations

import numpy as np
import pytest

from lumigrad.client import Client
from support.closeness import assert_image, assert_relative
from support.gaussian_case import Doubles
from support.gaussian_cases import gsplat_cases, upstream_of
from support.gaussian_operator import operate
from support.gaussian_reference_runs import ReferenceScene

CASES = {case.name: case for case in gsplat_cases()}
NAMES = (
    "rgb",
    "covariances",
    "background",
    "antialiased",
    "degree_3",
    "degree_2_of_3",
    "eight_channels",
    "orthographic",
    "fisheye",
    "distorted",
    "principal_point",
    "sheared",
    "three_cameras",
    "colors_per_view",
    "batch",
    "batch_colors_per_view",
    "alpha_max",
    "radius_clip",
    "whole_pixels",
    "scale_modifier",
    "slice",
    "slices",
    "slice_orthographic",
)
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


@pytest.mark.parametrize("name", ["rgb", "three_cameras", "batch", "slices"])
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
