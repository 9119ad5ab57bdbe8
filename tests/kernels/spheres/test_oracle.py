"""Compat semantics against results of the original renderer itself, if they are available."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.backends.engines import Engine
from support.closeness import assert_image, assert_of_maximum
from support.spheres import oracle
from support.spheres.case import sphere_ids
from support.spheres.runs import run, wanted_of

FILES = oracle.files()
pytestmark = pytest.mark.skipif(not FILES, reason=oracle.ABSENT)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_original_is_reproduced(path: Path, engine: Engine) -> None:
    for element in oracle.load(path):
        case, expected = element.case, element.expected
        if element.element and case.opacities is not None:
            continue  # The original gives every element of a batch the opacities of the first.
        wanted = () if case.hits_only else wanted_of(case)
        result = run(engine, case, "compat", outputs=("color", "info", "hits"), wanted=wanted)
        if case.hits_only:
            np.testing.assert_array_equal(result.outputs["hits"][0], expected.hits)
            continue
        assert_image(result.outputs["color"][0], expected.image)
        info = result.outputs["info"][0]
        np.testing.assert_array_equal(sphere_ids(info), sphere_ids(expected.info))
        numbers = [0, 1, 2, *range(4, info.shape[-1], 2)]
        np.testing.assert_allclose(info[..., numbers], expected.info[..., numbers], rtol=1e-6, atol=1e-5)
        for name in wanted:
            actual = result.gradients[name][0] if name == "cameras" else result.gradients[name]
            tolerance = 1e-3 if case.gamma < 1e-3 or name == "cameras" else 1e-4
            assert_of_maximum(f"{case.name} {name}", actual, expected.gradients[name], tolerance)
