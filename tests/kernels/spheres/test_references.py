"""The references themselves: against the original renderer's own results, closed forms and finite differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from support.closeness import assert_image
from support.spheres import exact_reference
from support.spheres.cases import IDENTITY, build
from support.spheres.compat_math import fast_exp, fast_ln
from support.spheres.exact_views import pulsar_view


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
