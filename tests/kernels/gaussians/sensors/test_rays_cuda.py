"""Gaussians along rays on CUDA devices: crowds in several views, tiles without lists, sums in a fixed order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from lumigrad.kernels.gaussians import Gaussians, Settings
from support.backends.cuda_devices import Device
from support.backends.gaussian_engines import ENGINES, Engine, cpu
from support.closeness import assert_image, assert_relative
from support.gaussians.sensor_cases import RAY_CASES, pose, scene

WANTED = ("means", "quats", "scales", "opacities", "colors", "background", "cameras", "lenses")
IMAGES = ("color", "alpha", "hit_distance", "expected_hit_distance", "normals")
# More Gaussians in a tile than a batch holds, some of which cover the whole image of several windows of tiles.
COUNT, WIDTH, HEIGHT = 700, 150, 75
Made = tuple[dict[str, Tensor], dict[str, Tensor]]


def crowd(channels: int) -> Gaussians:
    tensors = scene(COUNT, seed=4)
    tensors["scales"][50:] *= torch.tensor([0.1, 0.5, 1.0])
    tensors["scales"][:3] *= 6.0
    tensors["opacities"] *= 0.5
    tensors["colors"] = torch.rand(COUNT, channels, generator=torch.Generator().manual_seed(1))
    return Gaussians(**tensors)


def made(engine: Engine, channels: int, outputs: Sequence[str] = IMAGES, **changes: object) -> Made:
    """Returns the outputs and gradients of two views through the same lens, one of which moves."""
    moving = replace(RAY_CASES["rolling up"], start=pose(z=0.1), width=WIDTH, height=HEIGHT)
    cameras = [replace(RAY_CASES["opencv"], width=WIDTH, height=HEIGHT).camera(), moving.camera()]
    settings = Settings(**{"response": "ray", **changes})
    background = torch.linspace(-0.2, 0.9, channels)
    results, state = engine.forward(
        crowd(channels), cameras, settings, background=background, outputs=outputs, retain=True
    )
    random = torch.Generator().manual_seed(7)
    upstream = {name: torch.rand(results[name].shape, generator=random) - 0.3 for name in outputs}
    return results, engine.backward(state, upstream, WANTED)[0]


def assert_same(actual: Made, expected: Made, tolerance: float) -> None:
    for name, value in expected[0].items():
        assert_image(actual[0][name].numpy(), value.numpy(), 3e-5 * max(1.0, float(value.abs().max())))
    for name, value in expected[1].items():
        assert_relative(name, actual[1][name].numpy(), value.numpy(), tolerance)


# The second and the third case have more features than a pixel keeps at a time.
@pytest.mark.parametrize(
    ("channels", "outputs"), [(3, ("color", "alpha")), (11, IMAGES), (4, ("color", "depth", "normals"))]
)
def test_the_cpu_sees_the_same_along_rays(channels: int, outputs: Sequence[str], device: Device) -> None:
    assert_same(made(device.engine, channels, outputs), made(cpu(), channels, outputs), 2e-4)


@pytest.mark.parametrize("tile_size", [4, 8])
def test_pixels_outside_of_gsplats_tiles_do_not_see_a_gaussian(tile_size: int, device: Device) -> None:
    changes = {"tile_bounds": "gsplat", "tile_size": tile_size}
    assert_same(made(device.engine, 3, **changes), made(cpu(), 3, **changes), 2e-4)


def test_tiles_that_were_not_listed_look_the_same_along_rays(device: Device) -> None:
    listed = made(device.engine, 3)
    device.cuda.session.set_pair_limit(0)
    assert_same(made(device.engine, 3), listed, 2e-5)


@cache
def in_order() -> Made:
    """Returns the emulation's results in its usual order of threads, before a test changes it."""
    return made(ENGINES["emulation"](), 3, deterministic=True)


def test_order_of_threads_does_not_matter_along_rays(thread_seed: int, emulation_device: Device) -> None:
    first = in_order()
    emulation_device.native.set_seed(thread_seed)
    again = made(emulation_device.engine, 3, deterministic=True)
    for one, other in zip(first, again, strict=True):
        for name, value in one.items():
            np.testing.assert_array_equal(other[name].numpy(), value.numpy(), err_msg=name)


def test_state_counts_the_rays(emulation_device: Device) -> None:
    native = emulation_device.native
    native.device_trim(0)
    case = RAY_CASES["opencv"]
    given = Gaussians(**case.scene)
    _, state = emulation_device.engine.forward(given, [case.camera()], Settings(**case.settings), retain=True)
    # Origins and directions of the pixels in 3 x 3 whole tiles.
    assert 9 * 256 * 24 < state.kept.bytes <= native.device_bytes(0)
