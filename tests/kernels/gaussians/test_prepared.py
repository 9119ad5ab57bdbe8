"""Prepared renders: the bits of `forward`, whatever the poses, outputs and encodings."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
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
from lumigrad.kernels.gaussians.prepared import Place, prepare
from lumigrad.kernels.levels import write_levels
from lumigrad.v1 import camera_pb2, render_pb2
from support.backends.cuda_devices import CudaDevice
from support.backends.engines import emulated
from support.gaussians.cases import Cloud, build
from support.gaussians.runs import scene_of

WIDTH, HEIGHT = 61, 45
FOCAL = (50.0, 52.0, 30.0, 22.5)
ALIGNMENT = 64
SIZES = {"levels": 1, "float16": 2, "bfloat16": 2, "plain": 4}


@pytest.fixture
def queue() -> Iterator[_native.Queue]:
    """A queue whose device's thread runs, for native jobs alone."""
    made = _native.Queue(8, 8, 0)
    thread = threading.Thread(target=made.take, daemon=True)
    thread.start()
    yield made
    made.close()
    thread.join()


class Device:
    """Where requests are drawn, by kernels that write the bits of `forward` here."""

    def __init__(self, renderer: Any, forward: Any) -> None:
        self.renderer = renderer
        self.forward = forward

    def job(self, queue: Any, made: Any, request: Any, batch: int = 0) -> Any:
        staging = np.empty(self.renderer.staging_bytes(made), np.uint8)
        made.demand(kind=7, batch=batch, fill=0.01, bytes=0)
        payload = _native.Account(1 << 40, 1 << 40, 0).take("", 1)
        return _native.RenderJob(queue, made, request, self.renderer, staging, payload, "", 1, inf, 1 << 30)


@pytest.fixture
def emulated_device(emulated_cuda: CudaDevice) -> Device:
    engine = CudaEngine(emulated_cuda.native, 0, emulated_cuda.current_stream)
    return Device(emulated_cuda.native.cuda_renderer(0, 0, 0), emulated(forward, engine))


@pytest.fixture(params=["cpu", "emulation"])
def device(request: pytest.FixtureRequest) -> Device:
    if request.param == "cpu":
        return Device(_native.cpu_renderer(), forward)
    made: Device = request.getfixturevalue("emulated_device")
    return made


def poses(count: int, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Matrices that are no rotations either, with negative zeros."""
    source = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        rotation = np.linalg.qr(source.normal(size=(3, 3)))[0] + 0.01 * source.normal(size=(3, 3))
        rotation[source.random((3, 3)) < 0.1] = -0.0
        found.append((rotation, np.array([0.1, -0.2, 4.0]) + 0.3 * source.normal(size=3)))
    return found


def cameras_at(views: Sequence[tuple[np.ndarray, np.ndarray]], **options: Any) -> list[Camera]:
    return [Camera.opencv(*FOCAL, rotation, translation, WIDTH, HEIGHT, **options) for rotation, translation in views]


def request_of(views: Sequence[tuple[np.ndarray, np.ndarray]]) -> _native.RenderRequest:
    """Of a prepared render only the poses count."""
    message = render_pb2.RenderRequest()
    message.spec.scene_ref.scene_id = "scene"
    for rotation, translation in views:
        model = camera_pb2.OpenCVCamera(rotation=rotation.reshape(-1), translation=translation)
        message.spec.cameras.append(camera_pb2.Camera(width=WIDTH, height=HEIGHT, opencv=model))
    return _native.read_render_request(message.SerializeToString())


def encoded(values: Tensor, encoding: str) -> bytes:
    if encoding == "levels":
        levels = torch.empty(values.shape, dtype=torch.uint8)
        # A copy of what the emulated device may have yet to write.
        write_levels(values.clone(), levels)
        return levels.numpy().tobytes()
    if encoding == "plain":
        return values.contiguous().numpy().tobytes()
    return values.to(getattr(torch, encoding)).contiguous().view(torch.uint16).numpy().tobytes()


def places_of(outputs: dict[str, Tensor], encodings: dict[str, str], head: bytes) -> tuple[list[Place], int]:
    places, end = [], 0
    for name, values in outputs.items():
        encoding = encodings.get(name, "plain")
        offset = -(-end // ALIGNMENT) * ALIGNMENT
        places.append(Place(name, encoding, values.numel(), offset))
        end = offset + values.numel() * SIZES[encoding]
    return places, end


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
    places, nbytes = places_of(first.outputs, encodings, head)
    made = prepare(scene, cameras_at(poses(views, 1), **options), settings, places, nbytes, head, background=background)
    for seed in (2, 3):
        moved = poses(views, seed)
        job = device.job(queue, made, request_of(moved))
        assert job.run(0.0) == _native.Outcome.DONE
        expected = device.forward(scene, cameras_at(moved, **options), settings, outputs=names, background=background)
        assert job.reply.startswith(head)
        payload = job.reply[len(head) : len(head) + nbytes]
        for place in places:
            wanted = encoded(expected.outputs[place.name], place.encoding)
            assert payload[place.offset : place.offset + len(wanted)] == wanted, (place, seed)
        tail = render_pb2.RenderReply.FromString(job.reply[len(head) + nbytes :])
        assert {stage.name for stage in tail.timings.stages} >= {"decode", "queue", "kernel.blend"}


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
    """One Gaussian in front of a background that has every kind of number."""
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
    places, nbytes = places_of(first.outputs, {"color": "levels"}, b"")
    options: dict[str, Any] = {"background": background, "most_together": count}
    made = prepare(scene, cameras_at(poses(views, 1)), Settings(), places, nbytes, b"", **options)
    moved = [poses(views, seed) for seed in range(count)]
    # What it knows of their kind, that they take no time, lets the queue put them into batches.
    for _ in range(3):
        queue.run_probe(_native.ProbeJob(kind=7))
    jobs = [emulated_device.job(queue, made, request_of(views_of), batch=5) for views_of in moved]
    busy = _native.ProbeJob(is_repeatable=True)
    busy.seconds = 30.0
    probe = threading.Thread(target=queue.run_probe, args=(busy,))
    probe.start()
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
    before = _native.current_isa()
    _native.set_isa(isa)
    try:
        check(queue, device, scene_for(), Settings(), ["color", "alpha"], {"color": "levels"})
    finally:
        _native.set_isa(before)
