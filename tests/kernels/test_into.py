"""Outputs that are written to memory of the caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from lumigrad.kernels import gaussians, spheres
from lumigrad.kernels.errors import ArgumentError
from support.gaussians.cases import Cloud, build
from support.gaussians.runs import cameras_of, scene_of

SHAPE = (1, 40, 48, 3)
CASE = build("into", Cloud(count=5))


def render_spheres(**options: Any) -> Any:
    positions = torch.rand(5, 3) + torch.tensor([0.0, 0.0, 4.0])
    camera = spheres.Camera.opencv(30.0, 30.0, 24.0, 20.0, np.eye(3), [0.0] * 3, 48, 40)
    settings = spheres.Settings(gamma=0.1, max_depth=20.0)
    return spheres.forward(positions, torch.rand(5, 3), torch.full((5,), 0.5), [camera], settings, **options)


def render_gaussians(**options: Any) -> Any:
    return gaussians.forward(scene_of(CASE), cameras_of(CASE), gaussians.Settings(), **options)


@pytest.fixture(params=[render_spheres, render_gaussians], ids=["spheres", "gaussians"])
def render(request: pytest.FixtureRequest) -> Callable[..., Any]:
    torch.manual_seed(2)
    return request.param


def test_outputs_are_written_where_they_are_wanted(render: Callable[..., Any]) -> None:
    room = torch.full(SHAPE, torch.nan)
    found = render(outputs=("color", "alpha"), into={"color": room})
    assert found.outputs["color"] is room
    torch.manual_seed(2)
    expected = render(outputs=("color", "alpha")).outputs
    assert torch.equal(room, expected["color"])
    assert torch.equal(found.outputs["alpha"], expected["alpha"])


@pytest.mark.parametrize(
    "room",
    [torch.empty(SHAPE[1:]), torch.empty(SHAPE, dtype=torch.float64), torch.empty(1, 40, 3, 48).transpose(2, 3)],
    ids=["shape", "type", "order"],
)
def test_memory_that_does_not_fit_is_refused(render: Callable[..., Any], room: torch.Tensor) -> None:
    with pytest.raises(ArgumentError, match=r"into\['color'\]"):
        render(into={"color": room})
