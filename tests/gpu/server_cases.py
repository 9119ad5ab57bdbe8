"""The server end to end on the device: formats of images over both lanes, and many clients at a time."""

from __future__ import annotations

import importlib.util
import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from tests.gpu.device import Device
from tests.gpu.runner import Case, NotHere

NEEDED = (
    "grpc", "grpc_health", "grpc_reflection", "google.rpc", "isal", "PIL", "prometheus_client", "lumigrad.v1",
    "lumigrad.drive.v1",
)  # fmt: skip
_CLIENTS = (1, 2, 4, 8, 16)
_COMMAND = (sys.executable, "-c", "import sys; from lumigrad.client.cli import main; sys.exit(main())", "serve")


def server_cases(device: Device) -> list[Case]:
    """A worker is started for each."""
    cases = [
        Case(f"server, formats, lane {lane}", lambda on, lane=lane: _formats(on, lane)) for lane in ("stream", "shared")
    ]
    return [*cases, Case("server, clients at a time", _clients)]


def _worker(device: Device) -> Any:
    missing = [name for name in NEEDED if not _found(name)]
    if missing:
        raise NotHere(f"no {', '.join(missing)}")
    from support.workers.worker import worker

    # The emulation is not a device that a worker can have.
    return worker("--device", device.size("cuda:0", "cpu"), command=_COMMAND)


def _found(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _formats(device: Device, lane: str) -> dict[str, Any]:
    with _worker(device) as process:
        from lumigrad.client import Client
        from tests.benchmarks.lane_formats import format_rows

        with Client(process.target, lane=lane) as client:  # type: ignore[arg-type]
            return {"formats": [asdict(row) for row in format_rows(client, runs=device.size(15, 1))]}


def _clients(device: Device) -> dict[str, Any]:
    """Calls for a picture of 640x360 of 100,000 Gaussians, as bytes, from threads with a client each."""
    from tests.benchmarks.gaussian_scene import scene

    with _worker(device) as process:
        from lumigrad.client import Camera, Client, Gaussians

        made = scene(device.size(100_000, 300), 640, 360)
        camera = Camera.opencv(*made.intrinsics, made.rotation, made.translation, made.width, made.height)
        with Client(process.target) as first:
            handle = first.put(Gaussians(**made.tensors))
            rows = []
            for count in _CLIENTS[: device.size(5, 2)]:
                clients = [Client(process.target) for _ in range(count)]
                calls = [
                    lambda client=client: client.render(handle, camera, image_format="uint8") for client in clients
                ]
                rows.append({"clients": count, **_rate(calls, device.size(3.0, 0.2))})
                for client in clients:
                    client.close()
    return {"clients": rows}


def _rate(calls: list[Callable[[], object]], seconds: float) -> dict[str, float]:
    times: list[float] = []
    until = time.perf_counter() + seconds

    def repeat(call: Callable[[], object]) -> None:
        call()
        while time.perf_counter() < until:
            start = time.perf_counter()
            call()
            times.append((time.perf_counter() - start) * 1e3)

    threads = [threading.Thread(target=repeat, args=(call,)) for call in calls]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if not times:
        raise RuntimeError("no call ended within the time")
    return {
        "calls_per_s": round(len(times) / (time.perf_counter() - start), 1),
        "median_ms": round(statistics.median(times), 3),
    }
