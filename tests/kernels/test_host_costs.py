"""Work that calls of the engines avoid to cost the host little; `tests.benchmarks.host_costs` measures the costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from lumigrad.kernels import _native, gaussians
from support.backends import emulation
from tests.benchmarks import host_costs
from tests.gpu.device import Device

LOOK = ((20.0, 20.0, 16.0, 8.0), np.eye(3), (0.0, 0.0, 4.0), 32, 16)


@pytest.fixture(params=["cpu", "emulation"])
def device(request: pytest.FixtureRequest) -> Device:
    if request.param == "emulation":
        emulation.load("_emulation")
    return Device(request.param)


def counted(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, counts: Counter[str]) -> None:
    before: Callable[..., Any] = getattr(owner, name)

    def call(*arguments: Any, **named: Any) -> Any:
        counts[name] += 1
        return before(*arguments, **named)

    monkeypatch.setattr(owner, name, call)


def test_no_call_hands_over_arrays_by_python(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """`Tensor.__dlpack__` takes longer than everything else that is done with an argument."""
    with device.engines():
        calls = host_costs.calls_of(device)
        counts: Counter[str] = Counter()
        counted(monkeypatch, torch.Tensor, "__dlpack__", counts)
        for call in calls.values():
            call(0)
        if device.name == "emulation":
            # The engines end with this block, and no pending work may refer to them afterwards.
            emulation.load("_emulation").synchronize()
    assert not counts


def scene(count: int) -> gaussians.Gaussians:
    means = torch.zeros(count, 3)
    means[:, 0] = torch.linspace(-1.0, 1.0, count)
    return gaussians.Gaussians(
        means=means, opacities=torch.full((count,), 0.9), quats=torch.eye(4)[:1].repeat(count, 1),
        scales=torch.full((count, 3), 0.2), colors=torch.ones(count, 3),
    )  # fmt: skip


def camera(shift: float = 0.0) -> gaussians.Camera:
    (numbers, rotation, translation, *size) = LOOK
    return gaussians.Camera.opencv(*numbers, rotation, np.add(translation, (shift, 0.0, 0.0)), *size)


def picture(of: gaussians.Gaussians, seen: gaussians.Camera, settings: gaussians.Settings) -> torch.Tensor:
    return gaussians.forward(of, [seen], settings).outputs["color"]


def test_views_and_settings_of_repeated_calls_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: Counter[str] = Counter()
    for name in ("make_gaussian_view", "make_gaussian_views", "make_gaussian_settings"):
        counted(monkeypatch, _native, name, counts)
    of, seen, settings = scene(3), camera(), gaussians.Settings()
    for _ in range(3):
        picture(of, seen, settings)
    assert set(counts.values()) == {1}


def test_what_is_kept_of_a_camera_fits_the_scene_and_the_settings() -> None:
    """A camera that is used again sees scenes of several sizes, with several settings, as a new camera does."""
    kept, settings = (
        camera(),
        (gaussians.Settings(), gaussians.Settings(pixel_center=0.0), gaussians.Settings(near=5.0)),
    )
    for count in (3, 7, 3):
        for each in settings:
            torch.testing.assert_close(
                picture(scene(count), kept, each), picture(scene(count), camera(), gaussians.Settings(**vars_of(each))),
                rtol=0, atol=0,
            )  # fmt: skip
    assert not torch.equal(picture(scene(3), camera(0.3), settings[0]), picture(scene(3), kept, settings[0]))


def vars_of(settings: gaussians.Settings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in ("pixel_center", "near")}


def test_one_slice_has_the_poses_of_a_transform_that_moves_nothing() -> None:
    """The poses are equal bit for bit, including negative zeros."""
    turned = np.array([[0.0, -0.0, 1.0], [-1.0, 0.0, -0.0], [-0.0, -1.0, 0.0]])
    seen = gaussians.Camera.opencv(20.0, 20.0, 16.0, 8.0, turned, (-0.0, 0.25, 4.0), 32, 16)
    still = [gaussians.Transform(0, 5, np.eye(4))]
    from lumigrad.kernels.gaussians.transforms import cut, poses

    whole, moved = poses([seen, seen], cut((), 5)), poses([seen, seen], cut(still, 5))
    assert whole.tobytes() == moved.tobytes()


@pytest.mark.parametrize(
    "sums", [torch.zeros(0, 5), torch.zeros(5, 4, dtype=torch.float64).T, np.zeros((0, 5), np.float32)]
)
def test_arrays_of_another_type_or_layout_are_refused(sums: Any) -> None:
    settings = _native.make_adam_settings(
        first_weight=0.1, second_decay=0.9, second_weight=0.1, root_correction=1.0, epsilon=1e-8, gradient_scale=1.0
    )
    with pytest.raises((RuntimeError, TypeError)):
        _native.training_adam(_native.TrainingWorkspace(), [], settings, sums)
