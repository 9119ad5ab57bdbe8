"""Colours that kernels write as levels in place of floats have the bits of converted floats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lumigrad.kernels import _native, gaussians
from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.gaussians import Camera, Gaussians, Settings
from lumigrad.kernels.gaussians.engine import CudaEngine
from support.backends.cuda_devices import CudaDevice
from support.backends.engines import emulated
from support.backends.gaussian_engines import instruction_set
from support.gaussians.cases import Cloud, build, opencv
from support.gaussians.runs import cameras_of, scene_of
from support.gaussians.sensor_cases import RAY_CASES
from support.gaussians.surfel_cases import SurfelCase, cloud
from support.levels import extreme_values, levels_of

# Sizes whose last tiles extend beyond the image.
VIEWS = (opencv(67, 45), opencv(67, 45, focal=0.7))
SETTINGS = {"film": Settings(), "rays": Settings(response="ray"), "surfels": Settings(primitive="surfel")}


def case_of(kind: str, channels: int) -> tuple[Gaussians, list[Camera], Settings]:
    """A scene of colours from below 0 to above 1, some of them infinite and NaN, and two views."""
    if kind == "film":
        case = build("levels", Cloud(count=200), width=67, height=45, cameras=VIEWS)
        tensors, cameras = scene_of(case).tensors(), cameras_of(case)
    elif kind == "rays":
        tensors, cameras = dict(RAY_CASES["opencv"].scene), [RAY_CASES["opencv"].camera()] * 2
    else:
        tensors, cameras = cloud(), [SurfelCase(cloud()).camera()] * 2
    tensors.pop("sh", None)
    colors = 2.0 * torch.rand(len(tensors["means"]), channels, generator=torch.Generator().manual_seed(5)) - 0.5
    colors[:3, 0] = torch.tensor([torch.inf, -torch.inf, torch.nan])
    return Gaussians(**{**tensors, "colors": colors}), cameras, SETTINGS[kind]


def check(forward: Callable[..., Any], device: torch.device, kind: str, channels: int) -> None:
    scene, cameras, settings = case_of(kind, channels)
    scene = Gaussians(**{name: value.to(device) for name, value in scene.tensors().items()})
    background = torch.linspace(-0.2, 1.3, channels).to(device)
    options: dict[str, Any] = {"background": background, "outputs": ("color", "alpha")}
    floats = forward(scene, cameras, settings, **options).outputs
    for retain in (False, True):
        room = torch.full(floats["color"].shape, 77, dtype=torch.uint8, device=device)
        found = forward(scene, cameras, settings, **options, into={"color": room}, retain=retain)
        assert found.outputs["color"] is room
        levels = room.cpu()
        assert torch.equal(levels, levels_of(floats["color"]))
        assert {0, 255} < set(levels.unique().tolist())
        assert torch.equal(found.outputs["alpha"].cpu(), floats["alpha"].cpu())
        if retain:
            kept = found.state.images["color"]
            assert torch.equal(kept.cpu().nan_to_num(), floats["color"].cpu().nan_to_num())


@pytest.mark.parametrize("channels", [1, 3, 21])
@pytest.mark.parametrize("kind", SETTINGS)
def test_kernels_for_cuda_write_the_levels_of_the_floats(kind: str, channels: int, cuda: CudaDevice) -> None:
    engine = CudaEngine(cuda.native, 0, cuda.current_stream)
    check(emulated(gaussians.forward, engine), cuda.device, kind, channels)


@pytest.mark.parametrize("isa", _native.available_isas())
@pytest.mark.parametrize("channels", [1, 3, 21])
@pytest.mark.parametrize("kind", SETTINGS)
def test_loops_for_the_cpu_write_the_levels_of_the_floats(kind: str, channels: int, isa: str) -> None:
    with instruction_set(isa):
        check(gaussians.forward, torch.device("cpu"), kind, channels)


def check_background(forward: Callable[..., Any], device: torch.device, values: Tensor, channels: int) -> None:
    """Check the levels of values that are backgrounds of views in which no Gaussian is seen."""
    backgrounds = values.reshape(-1, channels)
    case = build("background", width=20, height=20, opacities=[0.0] * 60)
    tensors = {**scene_of(case).tensors(), "colors": torch.zeros(60, channels)}
    scene = Gaussians(**{name: value.to(device) for name, value in tensors.items()})
    room = torch.empty((len(backgrounds), 20, 20, channels), dtype=torch.uint8, device=device)
    cameras = cameras_of(case) * len(backgrounds)
    forward(scene, cameras, Settings(), background=backgrounds.to(device), into={"color": room})
    assert torch.equal(room.cpu(), levels_of(backgrounds)[:, None, None].expand(room.shape))


@pytest.mark.parametrize("isa", _native.available_isas())
@pytest.mark.parametrize("channels", [3, 75])
def test_loops_for_the_cpu_write_the_levels_of_any_value(channels: int, isa: str) -> None:
    values = extreme_values(1650)
    # The values include ties, which round to even, NaN and infinities.
    assert {100, 102} <= set(levels_of(values[(values * 255.0 == 100.5) | (values * 255.0 == 101.5)]).tolist())
    assert values.isnan().any() and values.isinf().any()
    with instruction_set(isa):
        check_background(gaussians.forward, torch.device("cpu"), values, channels)


def test_values_half_way_between_levels_go_to_the_even_one(cuda: CudaDevice) -> None:
    values = torch.arange(-2.0, 258.0, 0.5) / 255.0
    expected = levels_of(values)
    assert expected[values * 255.0 == 100.5] == 100 and expected[values * 255.0 == 101.5] == 102
    forward = emulated(gaussians.forward, CudaEngine(cuda.native, 0, cuda.current_stream))
    check_background(forward, cuda.device, values, len(values))


def test_levels_of_another_shape_are_refused() -> None:
    scene, cameras, settings = case_of("film", 3)
    room = torch.empty((1, 45, 67, 3), dtype=torch.uint8)
    with pytest.raises(ArgumentError, match=r"into\['color'\]: expected a contiguous torch.uint8 tensor"):
        gaussians.forward(scene, cameras, settings, into={"color": room})
