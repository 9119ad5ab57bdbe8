"""Gaussian cases computed in double precision outside the repository, if they are available."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from support.backends.gaussian_engines import Engine
from support.closeness import assert_image, assert_relative
from support.gaussians import oracle as gaussian_oracle
from support.gaussians.runs import run
from support.spheres import oracle

FILES = oracle.files("gaussians")
pytestmark = pytest.mark.skipif(not FILES, reason=oracle.ABSENT)
SEMANTICS = {"gsplat": ("gsplat", "exact"), "inria_exact": ("inria_exact", "inria_depth")}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_cases_computed_elsewhere_are_reproduced(path: Path, gaussian_engine: Engine) -> None:
    found = gaussian_oracle.load(path)
    for semantics in SEMANTICS[found.case.options.semantics]:
        case = replace(found.case, options=replace(found.case.options, semantics=semantics))
        outputs = (*found.images, "radii", "means2d", "conics")
        result = run(gaussian_engine, case, outputs=outputs, upstream=found.upstream)
        deepest = float(np.abs(found.images.get("depth", found.images.get("expected_depth", np.ones(1)))).max())
        for name, image in found.images.items():
            tolerance = {"depth": 1e-5 * deepest, "expected_depth": 1e-5 * deepest, "contributors": 0}.get(name, 1e-5)
            assert_image(result.outputs[name][found.stable], image[found.stable], tolerance)
        np.testing.assert_array_equal(result.outputs["radii"], found.radii)
        visible = (found.radii > 0).all(-1)
        assert_image(result.outputs["means2d"][visible], found.means2d[visible], 5e-5)
        gradients = found.fork_gradients if semantics == "inria_depth" else found.gradients
        for name, gradient in gradients.items():
            # The gradient of a round Gaussian's rotation is only rounding.
            noise = 1e-6 * float(np.linalg.norm(gradients["scales"])) if name == "quats" else 0.0
            assert_relative(f"{semantics} {name}", result.gradients[name], gradient, 1e-4, noise)
