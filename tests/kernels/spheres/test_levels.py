"""Colours of spheres that the CPU's loops write as levels in place of floats have the bits of converted floats."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lumigrad.kernels import _native, spheres
from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.spheres import Camera, Settings
from support.backends.engines import ENGINES
from support.backends.gaussian_engines import instruction_set
from support.levels import extreme_values, levels_of

# Cameras whose last tiles extend beyond the image.
CAMERAS = [Camera.opencv(60, 60, 33, 22, np.eye(3), (0, 0, shift), 67, 45) for shift in (0.0, 0.4)]
SETTINGS = {
    semantics: Settings(gamma=0.1, max_depth=9.0, min_depth=0.1, semantics=semantics)
    for semantics in ("exact", "compat")
}


def cloud(channels: int) -> tuple[Tensor, Tensor, Tensor]:
    """Spheres whose colours are from below 0 to above 1, some of them infinite and NaN."""
    generator = torch.Generator().manual_seed(5)
    positions = torch.rand(300, 3, generator=generator) * torch.tensor([3.0, 2.0, 4.0]) + torch.tensor([-1.5, -1, 3])
    colors = 2.0 * torch.rand(300, channels, generator=generator) - 0.5
    colors[:3, 0] = torch.tensor([torch.inf, -torch.inf, torch.nan])
    return positions, colors, torch.rand(300, generator=generator) * 0.2 + 0.05


def check(forward: Any, channels: int, settings: Settings) -> None:
    options: dict[str, Any] = {"background": torch.linspace(-0.2, 1.3, channels), "outputs": ("color", "alpha")}
    floats = forward(*cloud(channels), CAMERAS, settings, **options).outputs
    for retain in (False, True):
        room = torch.full(floats["color"].shape, 77, dtype=torch.uint8)
        found = forward(*cloud(channels), CAMERAS, settings, **options, into={"color": room}, retain=retain)
        assert found.outputs["color"] is room
        assert torch.equal(room, levels_of(floats["color"]))
        assert {0, 255} < set(room.unique().tolist())
        assert torch.equal(found.outputs["alpha"], floats["alpha"])
        if retain:
            assert torch.equal(found.state.images["color"].nan_to_num(), floats["color"].nan_to_num())


@pytest.mark.parametrize("isa", _native.available_isas())
@pytest.mark.parametrize("channels", [1, 3, 5])
@pytest.mark.parametrize("semantics", SETTINGS)
def test_loops_for_the_cpu_write_the_levels_of_the_floats(semantics: str, channels: int, isa: str) -> None:
    with instruction_set(isa):
        check(spheres.forward, channels, SETTINGS[semantics])


@pytest.mark.parametrize("isa", _native.available_isas())
def test_loops_for_the_cpu_write_the_levels_of_any_value(isa: str) -> None:
    nothing = torch.zeros(0, 3), torch.zeros(0, 3), torch.zeros(0)
    camera = Camera.opencv(20, 20, 10, 10, np.eye(3), (0, 0, 0), 21, 5)
    with instruction_set(isa):
        for background in extreme_values(1650).reshape(-1, 3):
            room = torch.empty((1, 5, 21, 3), dtype=torch.uint8)
            spheres.forward(*nothing, [camera], SETTINGS["exact"], background=background, into={"color": room})
            assert torch.equal(room, levels_of(background).expand(room.shape)), background


def test_on_cuda_the_floats_are_converted() -> None:
    engine = ENGINES["emulation"]()
    check(engine._forward, 3, SETTINGS["exact"])


def test_levels_of_another_shape_are_refused() -> None:
    room = torch.empty((2, 67, 45, 3), dtype=torch.uint8)
    with pytest.raises(ArgumentError, match=r"into\['color'\]: expected a contiguous torch.uint8 tensor"):
        spheres.forward(*cloud(3), CAMERAS, SETTINGS["exact"], into={"color": room})
