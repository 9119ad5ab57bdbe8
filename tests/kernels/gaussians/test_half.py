"""`precision="half"`: a permission of which no engine makes use, and what refuses it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lumigrad.kernels import gaussians
from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.gaussians import Settings
from support.backends.gaussian_engines import Engine
from support.gaussians.cases import Cloud, build
from support.gaussians.runs import cameras_of, run, scene_of

RESULTS = ("color", "alpha", "depth", "inverse_depth", "contributors", "radii", "conics")
SHOWN = build("half", Cloud(count=300, degree=2))


def test_half_precision_is_full_precision(gaussian_engine: Engine) -> None:
    full, half = (run(gaussian_engine, SHOWN, outputs=RESULTS, precision=each).outputs for each in ("full", "half"))
    for name, value in full.items():
        np.testing.assert_array_equal(half[name], value, err_msg=name)


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one of": ({"precision": "double"}, {}),
    "with deterministic": ({"deterministic": True}, {}),
    "with response 'ray'": ({"response": "ray"}, {}),
    "with primitive 'surfel'": ({"primitive": "surfel"}, {}),
    "with the output 'ids'": ({}, {"outputs": ("color", "ids")}),
    "with retain": ({}, {"retain": True}),
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_needs_full_precision_refuses_half(text: str) -> None:
    settings, options = REFUSED[text]
    case = build("half refused", Cloud(count=5))
    with pytest.raises(ArgumentError, match=f"precision.*{text}"):
        gaussians.forward(scene_of(case), cameras_of(case), Settings(**{"precision": "half", **settings}), **options)
