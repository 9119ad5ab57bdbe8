"""A view takes memory for the Gaussians that it shows; the others of its scene change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch

from lumigrad.kernels import _native, gaussians
from lumigrad.kernels.gaussians import Camera, Gaussians, Settings
from lumigrad.kernels.gaussians.engine import CudaEngine
from lumigrad.kernels.memory import trim
from support.backends.cuda_devices import CudaDevice
from support.backends.engines import emulated
from support.closeness import assert_same_bits

COUNT, WIDTH, HEIGHT = 40_000, 96, 64
SETTINGS = Settings(sh_degree=1)
SURFELS = Settings(sh_degree=1, primitive="surfel")
RAYS = Settings(sh_degree=1, response="ray")
OPENCV = Camera.opencv(60, 60, 48, 32, np.eye(3), (0, 0, 0), WIDTH, HEIGHT)
# The room for the visible Gaussians of a large scene is estimated from one pack of sixteen in 64.
PACK, GUESSED = 16, 64


def scene(shown: torch.Tensor, depth: float = 1.0) -> Gaussians:
    """Gaussians before the camera where `shown`, and behind it elsewhere."""
    generator = torch.Generator().manual_seed(5)
    count = len(shown)
    z = (2.0 + torch.rand(count, generator=generator)) * depth
    aside = (torch.rand(count, 2, generator=generator) * 2 - 1) * torch.tensor([0.7, 0.45]) * z[:, None]
    means = torch.cat([aside, torch.where(shown, z, -z)[:, None]], -1)
    return Gaussians(
        means=means,
        quats=torch.randn(count, 4, generator=generator),
        scales=torch.rand(count, 3, generator=generator) * 0.02 + 0.005,
        opacities=torch.rand(count, generator=generator) * 0.8 + 0.1,
        sh=torch.randn(count, 4, 3, generator=generator) * 0.3,
    )


def rows_of(whole: Gaussians, rows: torch.Tensor) -> Gaussians:
    tensors = {item.name: getattr(whole, item.name) for item in fields(whole)}
    return Gaussians(**{name: None if value is None else value[rows] for name, value in tensors.items()})


def camera_for(settings: Settings) -> Camera:
    if settings.response != "ray":
        return OPENCV
    lens = gaussians.PinholeLens(fx=60, fy=60, cx=48, cy=32)
    return Camera.sensor(lens, np.eye(3), (0, 0, 0), WIDTH, HEIGHT)


def passes(
    of: Gaussians, settings: Settings, views: int = 1, engine: CudaEngine | None = None
) -> tuple[gaussians.Forward, gaussians.Backward, int]:
    """Runs both passes; also returns the bytes of the retained state after them."""
    cameras = [camera_for(settings)] * views
    run = gaussians.forward if engine is None else emulated(gaussians.forward, engine)
    differentiate = gaussians.backward if engine is None else emulated(gaussians.backward, engine)
    forward = run(of, cameras, settings, outputs=("color", "alpha", "ids"), retain=True)
    gradient = torch.linspace(-1, 1, forward.outputs["color"].numel()).reshape(forward.outputs["color"].shape)
    backward = differentiate(forward.state, {"color": gradient})
    kept: Any = forward.state.kept
    return forward, backward, kept.bytes


@pytest.mark.parametrize("settings", [SETTINGS, SURFELS, RAYS], ids=["ellipses", "surfels", "rays"])
@pytest.mark.parametrize("views", [1, 3])
def test_a_backward_pass_leaves_a_state_as_large_as_it_was(settings: Settings, views: int) -> None:
    cameras = [camera_for(settings)] * views
    forward = gaussians.forward(scene(one_in(2)), cameras, settings, retain=True)
    kept: Any = forward.state.kept
    before, gradient = kept.bytes, torch.ones_like(forward.outputs["color"])
    first = gaussians.backward(forward.state, {"color": gradient}).gradients
    assert before <= kept.bytes < before + 64 * 1024
    second = gaussians.backward(forward.state, {"color": gradient}).gradients
    assert_same_bits(second, first)


def one_in(count: int, of: int = COUNT) -> torch.Tensor:
    return torch.arange(of) % count == 3


def where_no_guess_looks() -> torch.Tensor:
    """Returns packs that the estimate does not sample, so that it leaves too little room at first."""
    return torch.arange(COUNT) // PACK % GUESSED < 12


@pytest.mark.parametrize("settings", [SETTINGS, SURFELS, RAYS], ids=["ellipses", "surfels", "rays"])
@pytest.mark.parametrize("shown", [one_in(10), where_no_guess_looks()], ids=["spread", "unexpected"])
def test_those_that_are_not_shown_change_no_bit(settings: Settings, shown: torch.Tensor) -> None:
    assert_same(shown, settings)


def assert_same(shown: torch.Tensor, settings: Settings, views: int = 1, engine: CudaEngine | None = None) -> None:
    """Checks that both passes of a scene equal those of its visible Gaussians alone."""
    whole = scene(shown)
    rows = shown.nonzero()[:, 0]
    forward, backward, _ = passes(whole, settings, views, engine)
    alone, alone_backward, _ = passes(rows_of(whole, rows), settings, views, engine)
    for name in ("color", "alpha"):
        np.testing.assert_array_equal(forward.outputs[name].numpy(), alone.outputs[name].numpy(), err_msg=name)
    ids = alone.outputs["ids"].long()
    expected = torch.where(ids < 0, ids, rows[ids.clamp(min=0)]).int()
    np.testing.assert_array_equal(forward.outputs["ids"].numpy(), expected.numpy())
    assert int((forward.outputs["ids"] >= 0).sum()) > 500
    np.testing.assert_array_equal(backward.touched.numpy()[rows], alone_backward.touched.numpy())
    for name, gradient in backward.gradients.items():
        np.testing.assert_array_equal(gradient[rows].numpy(), alone_backward.gradients[name].numpy(), err_msg=name)
        assert not gradient[~shown].any(), name


@pytest.mark.parametrize("views", [1, 3])
def test_memory_of_a_view_grows_with_what_it_shows(views: int, keep_threads: None) -> None:
    # Each thread takes some memory of its own.
    _native.set_thread_count(2)

    def taken(shown: torch.Tensor) -> tuple[int, int]:
        trim(torch.device("cpu"))
        before = _native.pool_bytes()
        results = passes(scene(shown), SETTINGS, views)
        grown = _native.pool_bytes() - before
        return results[2], grown

    none, few, all_ = (taken(shown) for shown in (one_in(10) & False, one_in(10), one_in(10) | True))
    for nothing, some, whole in zip(none, few, all_, strict=True):
        # The visible tenth, an eighth more than estimated, and 1,024 places for each of some parts.
        assert some - nothing < 0.3 * (whole - nothing)
    # A view of nothing takes half a byte per Gaussian, and memory for its pixels.
    assert none[0] < views * (COUNT + 100 * 1024 + 64 * WIDTH * HEIGHT)


@pytest.fixture
def emulation(emulated_cuda: CudaDevice) -> Iterator[CudaEngine]:
    """An engine on the emulated device, whose work is completed afterwards."""
    yield CudaEngine(emulated_cuda.native, 0, emulated_cuda.current_stream)
    emulated_cuda.native.synchronize()


# The count is no multiple of a thread block, in one view or in two.
@pytest.mark.parametrize("settings", [SETTINGS, SURFELS, RAYS], ids=["ellipses", "surfels", "rays"])
@pytest.mark.parametrize("views", [1, 2])
def test_those_that_are_not_shown_change_no_bit_on_cuda(settings: Settings, views: int, emulation: CudaEngine) -> None:
    assert_same(one_in(10, 5_003), replace(settings, deterministic=True), views, emulation)


@pytest.mark.parametrize("settings", [SETTINGS, SURFELS, RAYS], ids=["ellipses", "surfels", "rays"])
@pytest.mark.parametrize("views", [1, 2])
def test_memory_of_a_view_on_cuda_grows_with_what_it_shows(
    settings: Settings, views: int, emulation: CudaEngine
) -> None:
    count = 6_400

    def kept(shown: torch.Tensor) -> int:
        return passes(scene(shown), settings, views, emulation)[2]

    none, few, all_ = (kept(one_in(10, count) & False), kept(one_in(10, count)), kept(one_in(10, count) | True))
    each, seen = (few - none) / count / views, (all_ - none) / count / views
    print(f"{each:.1f} bytes for each Gaussian and view where a tenth is shown, {seen:.1f} where all are")
    assert few - none < 0.15 * (all_ - none)
    # A view of nothing takes three bits per Gaussian, and memory for its pixels.
    assert none < views * (0.5 * count + 64 * WIDTH * HEIGHT)


# Kernels, sums, copies and fills in a call of one view. A sum is two kernels of CUB on a GPU.
MOST_OPERATIONS = {"forward": 20, "backward": 5}


def test_a_view_on_cuda_takes_few_operations_of_the_device(emulation: CudaEngine, emulated_cuda: CudaDevice) -> None:
    made = emulated(gaussians.forward, emulation)
    emulated_cuda.native.take_operations()
    forward = made(scene(one_in(10, 1_000)), [OPENCV], SETTINGS, outputs=("color",), retain=True)
    taken = {"forward": emulated_cuda.native.take_operations()}
    emulated(gaussians.backward, emulation)(forward.state, {"color": torch.ones_like(forward.outputs["color"])})
    taken["backward"] = emulated_cuda.native.take_operations()
    print(f"operations of the device: {taken}, at most {MOST_OPERATIONS}")
    assert all(taken[name] <= most for name, most in MOST_OPERATIONS.items()), taken
