"""Prepared renders have the bits of `forward` for all poses, outputs and encodings."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lumigrad.kernels import _native
from lumigrad.kernels.gaussians import OUTPUTS, Camera, Gaussians, Settings, forward
from lumigrad.kernels.gaussians.engine import CudaEngine
from lumigrad.kernels.gaussians.prepared import prepare
from support.backends.cuda_devices import CudaDevice
from support.backends.engines import emulated
from support.backends.gaussian_engines import instruction_set
from support.backends.prepared import Device, check_reply, encoded, places_of, request_of
from support.gaussians.cases import Cloud, build
from support.gaussians.runs import scene_of

WIDTH, HEIGHT = 61, 45
FOCAL = (50.0, 52.0, 30.0, 22.5)


@pytest.fixture
def emulated_device(emulated_cuda: CudaDevice) -> Device:
    engine = CudaEngine(emulated_cuda.native, 0, emulated_cuda.current_stream)
    return Device(emulated_cuda.native.cuda_renderer(0, 0, 0), emulated(forward, engine))


@pytest.fixture(params=["cpu", "emulation"])
def device(request: pytest.FixtureRequest) -> Device:
    if request.param == "cpu":
        return Device(_native.cpu_renderer(), forward)
    return request.getfixturevalue("emulated_device")


def poses(count: int, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Poses whose matrices need not be rotations, with negative zeros."""
    source = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        rotation = np.linalg.qr(source.normal(size=(3, 3)))[0] + 0.01 * source.normal(size=(3, 3))
        rotation[source.random((3, 3)) < 0.1] = -0.0
        found.append((rotation, np.array([0.1, -0.2, 4.0]) + 0.3 * source.normal(size=3)))
    return found


def cameras_at(views: Sequence[tuple[np.ndarray, np.ndarray]], **options: Any) -> list[Camera]:
    return [Camera.opencv(*FOCAL, rotation, translation, WIDTH, HEIGHT, **options) for rotation, translation in views]


def check(
    queue: _native.Queue,
    device: Device,
    scene: Gaussians,
    settings: Settings,
    names: Sequence[str],
    encodings: dict[str, str],
    views: int = 2,
    background: Tensor | None = None,
    **options: Any,
) -> None:
    head = b"head of a length that leaves nothing aligned"
    first = forward(scene, cameras_at(poses(views, 1), **options), settings, outputs=names, background=background)
    places, nbytes = places_of(first.outputs, encodings)
    made = prepare(scene, cameras_at(poses(views, 1), **options), settings, places, nbytes, head, background=background)
    for seed in (2, 3):
        moved = poses(views, seed)
        job = device.job(queue, made, request_of(moved, WIDTH, HEIGHT))
        assert job.run(0.0) == _native.Outcome.DONE
        expected = device.forward(scene, cameras_at(moved, **options), settings, outputs=names, background=background)
        check_reply(job.reply, head, places, expected.outputs)


def scene_for(degree: int = 1, channels: int = 3) -> Gaussians:
    case = build("prepared", Cloud(count=150, degree=degree), width=WIDTH, height=HEIGHT)
    scene = scene_of(case)
    if channels == 3:
        return scene
    tensors = {name: value for name, value in scene.tensors().items() if name != "sh"}
    colors = 1.6 * torch.rand(150, channels, generator=torch.Generator().manual_seed(3)) - 0.3
    return Gaussians(**{**tensors, "colors": colors})


@pytest.mark.parametrize("names", [["color"], ["alpha", "color", "depth"], list(OUTPUTS)])
def test_outputs_are_those_of_forward(queue: _native.Queue, device: Device, names: list[str]) -> None:
    check(queue, device, scene_for(), Settings(), names, {})


@pytest.mark.parametrize("encoding", ["levels", "float16", "bfloat16"])
@pytest.mark.parametrize("channels", [3, 5])
def test_encodings_are_those_of_torch(queue: _native.Queue, device: Device, encoding: str, channels: int) -> None:
    encodings = dict.fromkeys(("color", "alpha", "transmittance"), encoding)
    check(
        queue, device, scene_for(channels=channels), Settings(), ["transmittance", "color", "depth", "alpha"], encodings
    )


@pytest.mark.parametrize(
    "options",
    [{"distortion": (0.1, -0.05, 0.01, 0.02)}, {"model": "fisheye"}, {"model": "orthographic"}],
    ids=["distorted", "fisheye", "orthographic"],
)
def test_lenses_are_those_of_the_first_request(queue: _native.Queue, device: Device, options: dict[str, Any]) -> None:
    check(queue, device, scene_for(), Settings(), ["color"], {}, **options)


@pytest.mark.parametrize("each", [False, True])
def test_backgrounds_are_drawn(queue: _native.Queue, device: Device, each: bool) -> None:
    background = torch.tensor([[0.9, -0.1, 0.3], [0.2, 0.4, 1.3]])
    check(queue, device, scene_for(), Settings(), ["color"], {}, background=background if each else background[0])


@pytest.mark.parametrize("settings", [Settings(semantics="inria_exact"), Settings(antialiased=True, eps2d=0.5)])
def test_settings_are_those_of_the_first_request(queue: _native.Queue, device: Device, settings: Settings) -> None:
    check(queue, device, scene_for(2), replace(settings, near=0.5), ["color", "radii"], {}, views=1)


def test_conversions_have_the_bits_of_torch_for_extremes(queue: _native.Queue, device: Device) -> None:
    """The image shows only a background, which has every kind of number."""
    values = [-0.0, 1e-7, 6e-8, 5.9e-8, 3e-8, 2.9e-8, 65504.0, 65519.9, 65520.0, 1e30, -1e30, 0.1, 1 / 3, -0.3, inf]
    values += [k / 255 / 2 for k in range(0, 512, 3)] + [6.1e-5, 6.09e-5, -6.1e-5, 1.0, 255.5 / 255]
    scene = scene_for(channels=len(values))
    hidden = Gaussians(**{**scene.tensors(), "opacities": torch.zeros_like(scene.tensors()["opacities"])})
    for encoding in ("levels", "float16", "bfloat16"):
        check(
            queue, device, hidden, Settings(), ["color"], {"color": encoding}, views=1, background=torch.tensor(values)
        )


@pytest.mark.parametrize("outputs", [["color"], ["alpha", "color", "ids"]])
def test_a_batch_of_the_emulated_device_gives_each_its_own(
    queue: _native.Queue, emulated_device: Device, outputs: list[str]
) -> None:
    """Three requests of two views wait while the device is busy, and are drawn in one launch."""
    scene, views, count = scene_for(), 2, 3
    background = torch.tensor([[0.9, -0.1, 0.3], [0.2, 0.4, 1.3]])
    first = forward(scene, cameras_at(poses(views, 1)), Settings(), outputs=outputs, background=background)
    places, nbytes = places_of(first.outputs, {"color": "levels"})
    options: dict[str, Any] = {"background": background, "most_together": count}
    made = prepare(scene, cameras_at(poses(views, 1)), Settings(), places, nbytes, b"", **options)
    moved = [poses(views, seed) for seed in range(count)]
    # The queue puts the jobs into batches because it has learnt from others of their kind that they take no time.
    for _ in range(16):
        queue.run_probe(_native.ProbeJob(kind=7))
    jobs = [emulated_device.job(queue, made, request_of(views_of, WIDTH, HEIGHT), batch=5) for views_of in moved]
    busy = _native.ProbeJob(is_repeatable=True)
    busy.seconds = 250.0
    probe = threading.Thread(target=queue.run_probe, args=(busy,))
    probe.start()
    while not queue.is_busy:
        time.sleep(0.001)
    threads = [threading.Thread(target=job.run, args=(0.0,)) for job in jobs]
    for thread in threads:
        thread.start()
    while queue.depth < count:
        time.sleep(0.001)
    queue.cancel(busy)
    for thread in [*threads, probe]:
        thread.join()
    assert sorted(job.batch_views for job in jobs) == [0, 0, count * views]
    for job, views_of in zip(jobs, moved, strict=True):
        found = emulated_device.forward(
            scene, cameras_at(views_of), Settings(), outputs=outputs, background=background
        ).outputs
        for place in places:
            wanted = encoded(found[place.name], place.encoding)
            assert job.reply[place.offset : place.offset + len(wanted)] == wanted


@pytest.mark.parametrize("isa", _native.available_isas())
def test_all_instruction_sets(queue: _native.Queue, device: Device, isa: str) -> None:
    with instruction_set(isa):
        check(queue, device, scene_for(), Settings(), ["color", "alpha"], {"color": "levels"})
