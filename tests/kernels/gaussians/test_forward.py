"""Images and what becomes of each Gaussian, against the float64 reference."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from support.backends.gaussian_engines import Engine
from support.closeness import assert_image
from support.gaussians.case import GaussianCase
from support.gaussians.cases import gsplat_cases, inria_cases
from support.gaussians.reference_runs import IMAGES, Reference, ReferenceScene
from support.gaussians.runs import OUTPUTS, run

CASES = {case.name: case for case in [*gsplat_cases(), *inria_cases()]}


@cache
def reference_of(name: str) -> Reference:
    return ReferenceScene(CASES[name]).forward()


def farthest(reference: Reference) -> float:
    """The largest depth of what is seen: what errors of depths are measured by."""
    return max(1.0, float(reference.stacked("depths").max(initial=0)))


@pytest.mark.parametrize("name", CASES)
def test_images_are_the_references(name: str, gaussian_engine: Engine) -> None:
    reference = reference_of(name)
    stable = reference.stacked("stable")
    assert stable.mean() > 0.98
    outputs = run(gaussian_engine, CASES[name], outputs=(*IMAGES, "contributors")).outputs
    scales = {"depth": farthest(reference), "expected_depth": farthest(reference)}
    for output in IMAGES:
        expected = reference.stacked(output)
        assert_image(outputs[output][stable], expected[stable], 1e-5 * scales.get(output, 1.0))
        assert outputs[output].shape == expected.shape
    np.testing.assert_array_equal(outputs["contributors"][stable], reference.stacked("contributors")[stable])


@pytest.mark.parametrize("name", CASES)
def test_each_gaussian_is_where_the_reference_sees_it(name: str, gaussian_engine: Engine) -> None:
    case, reference = CASES[name], reference_of(name)
    outputs = run(gaussian_engine, case, outputs=OUTPUTS).outputs
    sure = reference.stacked("sure")
    # Gaussians of the faint cases lie about the limit of visibility on purpose.
    assert sure.mean() > (0.8 if name in ("faint", "antialiased_tiny") else 0.97)
    radii = reference.stacked("radii")
    np.testing.assert_array_equal(outputs["radii"][sure], radii[sure])
    visible = (radii > 0).all(-1)
    seen = sure & visible
    size = max(case.width, case.height)
    means2d, conics = reference.stacked("means2d"), reference.stacked("conics")
    assert_image(outputs["means2d"][seen], means2d[seen], 1e-6 * (size + np.abs(means2d[seen])))
    assert_image(outputs["depths"][seen], reference.stacked("depths")[seen], 1e-6 * farthest(reference))
    largest = np.abs(conics[seen]).max(-1, initial=0, keepdims=True)
    assert_image(outputs["conics"][seen], conics[seen], np.broadcast_to(1e-5 * largest, conics[seen].shape))
    assert_image(outputs["projected_opacities"][seen], reference.stacked("projected_opacities")[seen], 2e-6)
    for output in ("radii", "means2d", "depths", "conics", "projected_opacities"):
        assert not outputs[output][sure & ~visible].any(), f"{output} of what was culled is not 0"


def test_one_pixel_is_the_case_it_says(gaussian_engine: Engine) -> None:
    case: GaussianCase = CASES["one_pixel"]
    outputs = run(gaussian_engine, case, outputs=("color", "contributors")).outputs
    assert outputs["color"].shape == (1, 1, 1, 3)
    assert outputs["contributors"].item() > 0
