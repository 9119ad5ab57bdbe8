"""Images of which only some rows are rendered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.gaussians import Settings, backward, forward
from support.gaussians.cases import Cloud, build, inria, upstream_of
from support.gaussians.runs import cameras_of, scene_of

IMAGES = ("color", "alpha", "depth", "contributors", "ids")
CASE = build("rows", Cloud(count=200, scales=(0.01, 0.8)), width=70, height=90)


def render(settings: Settings, **options: Any) -> Any:
    case = replace(CASE, cameras=(inria(70, 90),)) if settings.inria else CASE
    return forward(scene_of(case), cameras_of(case), settings, **options)


@pytest.mark.parametrize("settings", [Settings(), Settings(semantics="inria_exact"), Settings(primitive="surfel")])
@pytest.mark.parametrize("rows", [(0, 90), (16, 48), (33, 34), (80, 90), (5, 90)])
def test_rows_that_are_wanted_are_those_of_the_whole_image(settings: Settings, rows: tuple[int, int]) -> None:
    whole, found = (render(settings, outputs=IMAGES, rows=part).outputs for part in (None, rows))
    for name in IMAGES:
        assert torch.equal(found[name][:, slice(*rows)], whole[name][:, slice(*rows)]), name


@pytest.mark.parametrize("settings", [Settings(), Settings(primitive="surfel")])
@pytest.mark.parametrize("rows", [(16, 48), (33, 34), (80, 90)])
def test_gradients_of_rows_are_those_of_the_whole_image(settings: Settings, rows: tuple[int, int]) -> None:
    upstream = {}
    for name, array in upstream_of(CASE).items():
        upstream[name] = torch.zeros(array.shape)
        upstream[name][:, slice(*rows)] = torch.from_numpy(array[:, slice(*rows)])
    outputs, wanted = tuple(upstream), (*CASE.tensors, "cameras", "background")
    expected, found = (
        backward(render(settings, outputs=outputs, rows=part, retain=True).state, upstream, wanted).gradients
        for part in (None, rows)
    )
    for name, gradient in expected.items():
        np.testing.assert_allclose(found[name], gradient, rtol=1e-5, atol=5e-5 * float(gradient.abs().max()))


def test_no_rows_are_for_outputs_of_gaussians_alone() -> None:
    outputs = ("radii", "means2d", "depths", "conics", "projected_opacities")
    whole, found = (render(Settings(), outputs=outputs, rows=rows).outputs for rows in (None, (0, 0)))
    assert all(torch.equal(found[name], whole[name]) for name in outputs)
    for options in ({"outputs": ("color",)}, {"outputs": ("radii", "ids")}, {"outputs": ("radii",), "retain": True}):
        with pytest.raises(ArgumentError, match=r"^rows: "):
            render(Settings(), rows=(0, 0), **options)
    for rows in ((-1, 4), (4, 3), (0, 91)):
        with pytest.raises(ArgumentError, match=r"^rows: "):
            render(Settings(), rows=rows)
