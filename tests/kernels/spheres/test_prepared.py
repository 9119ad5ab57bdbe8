"""Prepared renders of spheres have the bits of `forward` for all poses, outputs and encodings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from lumigrad.kernels import _native
from lumigrad.kernels.spheres import OUTPUTS, Camera, Settings, forward
from lumigrad.kernels.spheres.engine import CudaEngine
from lumigrad.kernels.spheres.inputs import check_inputs
from lumigrad.kernels.spheres.prepared import prepare
from support.backends.cuda_devices import CudaDevice
from support.backends.engines import emulated
from support.backends.prepared import Device, Pose, check_reply, places_of, request_of
from support.gaussians.rotation import turned

WIDTH, HEIGHT = 47, 35
LENSES = ((50.0, 52.0, 23.0, 17.5), (40.0, 61.0, 20.0, 19.0))
ENCODINGS = {"color": "levels", "alpha": "float16", "weights": "bfloat16"}


@pytest.fixture(params=["cpu", "emulation"])
def device(request: pytest.FixtureRequest) -> Device:
    if request.param == "cpu":
        return Device(_native.cpu_renderer(), forward)
    cuda: CudaDevice = request.getfixturevalue("emulated_cuda")
    engine = CudaEngine(cuda.native, 0, cuda.current_stream)
    return Device(cuda.native.cuda_renderer(0, 0, 0), emulated(forward, engine))


def poses(seed: int) -> list[Pose]:
    source = np.random.default_rng(seed)
    return [(turned(*source.uniform(-0.2, 0.2, 3)), source.uniform(-0.3, 0.3, 3)) for _ in LENSES]


def cameras_at(views: Sequence[Pose]) -> list[Camera]:
    return [Camera.opencv(*lens, *pose, WIDTH, HEIGHT) for lens, pose in zip(LENSES, views, strict=True)]


def scene(has_opacities: bool) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(5)
    positions = torch.rand(120, 3, generator=generator) * torch.tensor([3.0, 2.0, 4.0]) + torch.tensor([-1.5, -1, 3])
    return {
        "positions": positions,
        "colors": 1.6 * torch.rand(120, 3, generator=generator) - 0.3,
        "radii": torch.rand(120, generator=generator) * 0.2 + 0.05,
        "opacities": torch.rand(120, generator=generator) if has_opacities else None,
    }


@pytest.mark.parametrize("semantics", ["exact", "compat"])
@pytest.mark.parametrize("encodings", [{}, ENCODINGS])
@pytest.mark.parametrize("names", [["color"], ["hits", "color"], list(OUTPUTS)])
def test_outputs_are_those_of_forward(
    queue: _native.Queue, device: Device, names: list[str], encodings: dict[str, str], semantics: str
) -> None:
    tensors, head = scene(semantics == "exact"), b"head of a length that leaves nothing aligned"
    settings = Settings(gamma=0.1, max_depth=9.0, semantics=semantics, n_track=3)
    background = torch.tensor([0.9, -0.1, 0.3])
    inputs = check_inputs(**tensors, background=background)
    first = forward(**tensors, cameras=cameras_at(poses(1)), settings=settings, background=background, outputs=names)
    places, nbytes = places_of(first.outputs, encodings)
    made = prepare(inputs, cameras_at(poses(1)), settings, places, nbytes, head)
    for seed in (2, 3):
        job = device.job(queue, made, request_of(poses(seed), WIDTH, HEIGHT))
        assert job.run(0.0) == _native.Outcome.DONE
        views = cameras_at(poses(seed))
        found = device.forward(**tensors, cameras=views, settings=settings, background=background, outputs=names)
        check_reply(job.reply, head, places, found.outputs)


def test_poses_that_may_be_refused_are_not_drawn() -> None:
    inputs, settings = check_inputs(**scene(True), background=None), Settings(gamma=0.1, max_depth=9.0)
    outputs = forward(**scene(True), cameras=cameras_at(poses(1)), settings=settings).outputs
    made = prepare(inputs, cameras_at(poses(1)), settings, *places_of(outputs, {}), b"")
    good, shift = poses(2), np.zeros(3)
    assert made.takes(request_of(good, WIDTH, HEIGHT))
    assert not made.takes(request_of(good[:1], WIDTH, HEIGHT))
    for matrix in (np.diag([1.0, 1.0, -1.0]), 1.001 * np.eye(3), np.zeros((3, 3)), np.full((3, 3), 1e200)):
        assert not made.takes(request_of([good[0], (matrix, shift)], WIDTH, HEIGHT))
