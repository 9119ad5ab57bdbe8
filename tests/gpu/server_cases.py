"""The server end to end on the device: clients in separate processes, steps of training, batches and formats."""

from __future__ import annotations

import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tests.benchmarks.gaussian_scene import Scene, scene
from tests.gpu.client_processes import Calls, rate
from tests.gpu.device import VARIANTS, Device
from tests.gpu.runner import Case, NotHere

NEEDED = (
    "grpc", "grpc_health", "grpc_reflection", "google.rpc", "isal", "PIL", "prometheus_client", "simplejpeg",
    "lumigrad.v1", "lumigrad.drive.v1",
)  # fmt: skip
# Images of a call: as many as a simulator asks for at a time.
_BATCH = 64
_RGB_D: dict[str, Any] = {
    "outputs": ("color", "expected_depth"),
    "image_format": {"color": "uint8", "expected_depth": "float16"},
}
_STEPS_AHEAD = 8
_COMMAND = (sys.executable, "-c", "import sys; from lumigrad.client.cli import main; sys.exit(main())", "serve")


# Hides nvJPEG from a worker.
_WITHOUT_NVJPEG = "from lumigrad.server.device import cuda; cuda.library_path = lambda _: None; "


def server_cases(device: Device) -> list[Case]:
    """The cases, each of which starts a worker."""
    cases = [
        Case(f"server, formats, lane {lane}", lambda on, lane=lane: _formats(on, lane)) for lane in ("stream", "shared")
    ]
    small = Pictures(100_000, 640, 360, {"image_format": "uint8"}), (1, 16)
    large = Pictures(1_000_000, 1920, 1080, {"image_format": "uint8"}), (1, 16), "shared"
    files = Pictures(1_000_000, 1920, 1080, {"image_format": "jpeg"}), (16,)
    return [
        Case("server, 100k Gaussians 640x360", lambda on: _clients(on, *small)),
        Case("server, 1M Gaussians 1080p", lambda on: _clients(on, *large)),
        Case("server, training step 1M 1080p", _training),
        Case("server, 1M Gaussians 1080p as JPEG", lambda on: _clients(on, *files)),
        Case("server, 1M Gaussians 1080p as JPEG without nvJPEG", lambda on: _clients_without_nvjpeg(on, *files)),
        Case("server, 1M Gaussians, batches of 640x480 RGB-D", _batches),
        *cases,
    ]


@dataclass(frozen=True)
class Pictures:
    """Images of Gaussians from cameras beside each other; `options` are arguments of the client's `render`."""

    gaussians: int
    width: int
    height: int
    options: dict[str, Any]

    def made(self, device: Device) -> Scene:
        """The scene."""
        size = device.size(self.width, 64), device.size(self.height, 48)
        return scene(device.size(self.gaussians, 300), *size)


def cameras_of(made: Scene, count: int) -> list[Any]:
    """Cameras that are moved sideways a little."""
    from lumigrad.client import Camera

    step = np.array([0.01 * np.linalg.norm(made.translation), 0, 0], np.float32)
    return [
        Camera.opencv(
            *made.intrinsics, made.rotation, made.translation + number % VARIANTS * step, made.width, made.height
        )
        for number in range(count)
    ]


def _worker(device: Device, before: str = "") -> Any:
    missing = [name for name in NEEDED if not _found(name)]
    if missing:
        raise NotHere(f"no {', '.join(missing)}")
    from support.workers.worker import worker

    # A worker cannot have the emulation as its device.
    python, option, program, *arguments = _COMMAND
    return worker("--device", device.size("cuda:0", "cpu"), command=(python, option, before + program, *arguments))


def _found(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _formats(device: Device, lane: str) -> dict[str, Any]:
    with _worker(device) as process:
        from lumigrad.client import Client
        from tests.benchmarks.lanes.formats import format_rows

        with Client(process.target, lane=lane) as client:  # type: ignore[arg-type]
            return {"formats": [asdict(row) for row in format_rows(client, runs=device.size(15, 1))]}


def _clients_without_nvjpeg(device: Device, pictures: Pictures, counts: tuple[int, ...]) -> dict[str, Any]:
    """Measures the same calls where the CPU encodes, to compare with."""
    import torch

    from lumigrad.server.device.gpu_jpegs import library_path

    if library_path(torch.version.cuda) is None:
        raise NotHere("no nvJPEG (the extras nvjpeg and nvjpeg-cu12)")
    return _clients(device, pictures, counts, before=_WITHOUT_NVJPEG)


def _clients(
    device: Device, pictures: Pictures, counts: tuple[int, ...], lane: str = "stream", before: str = ""
) -> dict[str, Any]:
    """Measures calls from clients in separate processes; the worker runs the statements `before` first."""
    with _worker(device, before) as process:
        from lumigrad.client import Client, Gaussians

        made = pictures.made(device)
        with Client(process.target) as first:
            handle = first.put(Gaussians(**made.tensors))
            rows = []
            for count in counts[: device.size(len(counts), 2)]:
                cameras = cameras_of(made, count)
                several = [Calls(process.target, handle, camera, pictures.options, lane) for camera in cameras]
                rows.append({"clients": count, "lane": lane, **rate(several, device.size(3.0, 0.2))})
    return {"clients": rows}


def _batches(device: Device) -> dict[str, Any]:
    """Measures calls for many small images with depths."""
    with _worker(device) as process:
        from lumigrad.client import Client, Frame, Gaussians

        made = Pictures(1_000_000, 640, 480, {}).made(device)
        count = device.size(_BATCH, 4)
        rows = []
        for lane in ("stream", "shared"):
            with Client(process.target, lane=lane) as client:
                handle = client.put(Gaussians(**made.tensors))
                items = [(handle, camera) for camera in cameras_of(made, count)]

                def call(client: Any = client, items: Any = items) -> None:
                    for frame in client.render_batch(items, **_RGB_D):
                        if not isinstance(frame, Frame):
                            raise frame

                rows.append(
                    {"clients": 1, "lane": lane, "frames_per_call": count, **_rate(call, device.size(3.0, 0.2))}
                )
                client.delete(handle)
    return {"clients": rows}


def _training(device: Device) -> dict[str, Any]:
    """Measures steps that the worker makes by itself: rendering, loss, gradients and Adam."""
    with _worker(device) as process:
        from lumigrad.client import Client, Gaussians

        made = Pictures(1_000_000, 1920, 1080, {}).made(device)
        random = np.random.default_rng(3)
        photographs = [random.integers(0, 256, (made.height, made.width, 3), np.uint8) for _ in range(VARIANTS)]
        cameras = cameras_of(made, VARIANTS)
        with (
            Client(process.target) as client,
            client.trainer(Gaussians(**made.tensors), cameras, photographs) as trainer,
        ):
            steps = iter(trainer.steps(1 << 30, in_flight=_STEPS_AHEAD))
            for _ in range(device.size(20, 2)):
                next(steps)
            return {"clients": [{"clients": 1, **_rate(lambda: next(steps), device.size(6.0, 0.2))}]}


def _rate(call: Callable[[], object], seconds: float) -> dict[str, float]:
    """The rate of repeated calls, after one that warms up."""
    call()
    times: list[float] = []
    until = (start := time.perf_counter()) + seconds
    while (before := time.perf_counter()) < until:
        call()
        times.append((time.perf_counter() - before) * 1e3)
    return {
        "calls_per_s": round(len(times) / (time.perf_counter() - start), 1),
        "median_ms": round(statistics.median(times), 3),
    }
