"""Flat Gaussians, and those without a rotation, seen by sensors and along rays: drawn, except as in gsplat."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from support.backends.gaussian_engines import Engine
from support.closeness import assert_image, assert_of_maximum
from support.gaussians.sensor_cases import CASES, JACOBIAN_CASES, RAY_CASES, SensorCase, run

ALL = {**CASES, **JACOBIAN_CASES, **{case.name: case for case in RAY_CASES.values()}}


def flat(case: SensorCase, thickness: float, length: float) -> SensorCase:
    """The case with the third scales `thickness`, and every second quaternion without a rotation, of this length."""
    quats, scales = case.scene["quats"].clone(), case.scene["scales"].clone()
    scales[:, 2] = thickness
    quats[::2] = torch.tensor([length, 0.0, 0.0, 0.0])
    return replace(case, scene={**case.scene, "quats": quats, "scales": scales})


@pytest.mark.parametrize("name", ["rolling", "ftheta by the Jacobian", "opencv on rays", "rolling fisheye on rays"])
def test_flat_gaussians_are_drawn_as_thin_ones(name: str, gaussian_engine: Engine) -> None:
    case = ALL[name]
    upstream = {"color": torch.ones(case.height, case.width, 3)}
    thin, found = (run(gaussian_engine, flat(case, *sizes), upstream) for sizes in ((1e-5, 1.0), (0.0, 0.0)))
    assert thin.outputs["alpha"].max() > 0.5
    for output in ("color", "alpha"):
        assert_image(found.outputs[output], thin.outputs[output], 1e-4)
    np.testing.assert_array_equal(found.outputs["radii"].any(-1), thin.outputs["radii"].any(-1))
    for key in ("means", "scales", "opacities"):
        assert_of_maximum(key, found.gradients[key], thin.gradients[key], 1e-3)
    assert_of_maximum("quats", found.gradients["quats"][1::2], thin.gradients["quats"][1::2], 1e-3)
    assert not found.gradients["quats"][::2].any()


def test_gsplat_leaves_flat_gaussians_out(gaussian_engine: Engine) -> None:
    case = replace(ALL["opencv"], settings={"semantics": "gsplat"})
    upstream = {"alpha": torch.ones(case.height, case.width)}
    for changed in (flat(case, 0.0, 1.0), replace(case, scene={**case.scene, "quats": 0.0 * case.scene["quats"]})):
        assert not run(gaussian_engine, changed, upstream).outputs["alpha"].any()
