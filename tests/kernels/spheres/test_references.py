"""The references themselves: against the original renderer's own results, closed forms and finite differences."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from support.closeness import assert_image, assert_of_maximum, assert_relative
from support.spheres import compat_backward, compat_reference, exact_reference, oracle
from support.spheres.cases import IDENTITY, build
from support.spheres.compat_math import fast_exp, fast_ln
from support.spheres.exact_views import OpenCV, opencv_view, pulsar_view

ORACLE_FILES = oracle.files()
needs_oracle = pytest.mark.skipif(not ORACLE_FILES, reason=oracle.ABSENT)


def doubles(values: object) -> Tensor:
    return torch.tensor(np.asarray(values, np.float64), dtype=torch.float64)


def test_fast_exponential_and_logarithm_have_their_known_values() -> None:
    assert fast_exp(0.0) == pytest.approx(0.97134757, abs=1e-6)
    assert fast_ln(1.0) == pytest.approx(0.0397, abs=1e-4)
    assert fast_ln(0.0) == np.float32(-87.989971088)
    x = np.linspace(-20, 20, 4001, dtype=np.float32)
    error = fast_exp(x) / np.exp(x.astype(np.float64)) - 1
    assert -0.040 < error.min() < -0.035
    assert 0.015 < error.max() < 0.021


@needs_oracle
@pytest.mark.parametrize("path", ORACLE_FILES, ids=lambda path: path.stem)
@pytest.mark.parametrize("camera", ["recorded", "derived"])
def test_compat_reference_reproduces_the_original(path: Path, camera: str) -> None:
    for element in oracle.load(path):
        rendered = compat_reference.render(element.case, element.camera if camera == "recorded" else None)
        if element.case.hits_only:
            np.testing.assert_array_equal(rendered.hits, element.expected.hits)
            continue
        if element.batched and element.element and element.case.opacities is not None:
            continue  # The original gives every element of a batch the opacities of the first.
        assert element.expected.image is not None and element.expected.info is not None
        np.testing.assert_array_equal(rendered.image, element.expected.image)
        np.testing.assert_array_equal(rendered.info.view(np.int32), element.expected.info.view(np.int32))
        gradients = compat_backward.gradients(element.case, rendered)
        gradients["cameras"] = compat_backward.camera_gradient(element.case, gradients)
        tolerance = 1e-3 if element.case.gamma < 1e-3 else 1e-5
        for name, expected in element.expected.gradients.items():
            assert_of_maximum(name, gradients[name], expected, tolerance)


def test_exact_reference_has_the_closed_form_of_a_ray_through_a_centre() -> None:
    case = build("closed form", positions=[[0.0, 0.0, 13.0]], radii=[0.8], colors=[[0.2, 0.4, 0.6]], width=5, height=5)
    view = pulsar_view(doubles(case.positions), doubles(IDENTITY), 5, 5)
    blending = exact_reference.Blending(doubles(0.1), doubles([1.0, 1.0, 0.0]), 22.0, 6.0)
    frame = exact_reference.render([view], doubles(case.colors), doubles(case.radii), blending)[0]
    radius = float(np.float32(0.8))
    weight = math.exp((1 - (13.0 - radius - 6.0) / 16.0) / 0.1)
    background = math.exp(1e-6 / 0.1)
    share = weight / (weight + background)
    color = share * np.float64(np.float32([0.2, 0.4, 0.6])) + (1 - share) * np.array([1.0, 1.0, 0.0])
    assert_image(frame.color[2, 2], color, 1e-14)
    assert float(frame.alpha[2, 2]) == pytest.approx(share, abs=1e-14)
    assert float(frame.depth[2, 2]) == pytest.approx(13.0 - radius, abs=1e-14)
    assert float(frame.depth[0, 0]) == -1.0


def _by_differences(loss: Callable[[list[Tensor]], Tensor], inputs: list[Tensor], step: float) -> list[Tensor]:
    """Central differences of every element of every input."""
    results = []
    for position, value in enumerate(inputs):
        gradient = torch.zeros_like(value)
        for index in range(value.numel()):
            sides = []
            for sign in (1, -1):
                moved = [item.clone() for item in inputs]
                moved[position].view(-1)[index] += sign * step
                sides.append(loss(moved))
            gradient.view(-1)[index] = (sides[0] - sides[1]) / (2 * step)
        results.append(gradient)
    return results


@pytest.mark.parametrize("kind", ["perspective", "orthogonal", "opencv"])
def test_exact_reference_gradients_are_those_of_finite_differences(kind: str) -> None:
    # A gentle scene: one huge soft sphere and two in front, whose outlines the film does not see.
    positions = doubles([[0.1, 0.2, 16.0], [0.6, -0.4, 14.0], [-0.7, 0.5, 13.0]])
    radii, opacities = doubles([4.5, 3.0, 2.8]), doubles([0.9, 0.8, 0.7])
    colors = doubles(np.random.default_rng(3).random((3, 2)))
    background, gamma = doubles([0.3, 0.8]), doubles(0.3)
    focal = 0.0 if kind == "orthogonal" else 3.0
    parameters = doubles([0.05, 0.1, 0.2, 0.99, 0.1, -0.05, -0.12, 1.02, 0.08, focal, 0.4, 0.5, -1.0])
    rotation = torch.linalg.matrix_exp(doubles([[0.0, -0.1, 0.05], [0.1, 0.0, -0.08], [-0.05, 0.08, 0.0]]))
    intrinsics, translation = doubles([40.0, 45.0, 3.4, 2.1]), doubles([0.1, -0.1, 0.3])
    upstream = doubles(np.random.default_rng(4).standard_normal((6, 7, 4)))

    def loss(values: list[Tensor]) -> Tensor:
        centres, tints, sizes, opaque, back, soft, *camera = values
        blending = exact_reference.Blending(soft, back, 25.0, 2.0 if kind == "orthogonal" else 0.0, 0.05)
        if kind == "opencv":
            view = opencv_view(centres, OpenCV(*camera), 7, 6)
        else:
            view = pulsar_view(centres, camera[0], 7, 6, orthogonal=kind == "orthogonal")
        frame = exact_reference.render([view], tints, sizes, blending, opaque)[0]
        both = torch.cat([frame.color, frame.alpha[..., None], frame.depth[..., None]], -1)
        return (both * upstream).sum()

    camera = [rotation, translation, intrinsics] if kind == "opencv" else [parameters]
    inputs = [positions, colors, radii, opacities, background, gamma, *camera]
    leaves = [value.clone().requires_grad_() for value in inputs]
    analytic = torch.autograd.grad(loss(leaves), leaves)
    for index, (ours, differences) in enumerate(zip(analytic, _by_differences(loss, inputs, 1e-5), strict=True)):
        assert_relative(f"input {index}", ours, differences, 1e-6)
