"""The costs of image formats for one image: bytes sent, and time besides the kernels."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

from lumigrad.client import Camera, Client, Frame, Spheres
from tests.benchmarks.lanes.cases import HEIGHT, WIDTH
from tests.benchmarks.scene import CAMERA, GAMMA, MAX_DEPTH, scene

_SPHERES = 10_000
_RUNS = 15
# Format, and quality where it has one.
_FORMATS = (("float32", None), ("float16", None), ("bfloat16", None), ("uint8", None), ("png", None), ("jpeg", 90))


@dataclass(frozen=True)
class FormatRow:
    """The costs of one format; milliseconds. The median includes the worker's time for files."""

    format: str
    payload_bytes: int
    median_ms: float
    compress_ms: float
    runs: int


def format_rows(client: Client, runs: int = _RUNS) -> list[FormatRow]:
    """Measures an image of ten thousand spheres in every format, in turns."""
    spheres = scene(_SPHERES)
    handle = client.put(Spheres(spheres.positions, spheres.colors, spheres.radii))
    camera = Camera.pulsar(CAMERA, WIDTH, HEIGHT)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name, _ in _FORMATS}
    sizes: dict[str, int] = {}
    for _ in range(runs):
        for name, quality in _FORMATS:
            start = time.perf_counter()
            frame = client.render(
                handle, camera, gamma=GAMMA, max_depth=MAX_DEPTH, image_format=name, jpeg_quality=quality
            )
            taken = (time.perf_counter() - start) * 1e3
            times[name].append((taken - frame.timings.kernel_ms, frame.timings.stages.get("compress", 0.0)))
            sizes[name] = _size(frame, name)
    return [
        FormatRow(
            format=name,
            payload_bytes=sizes[name],
            median_ms=statistics.median(taken for taken, _ in measured),
            compress_ms=statistics.median(spent for _, spent in measured),
            runs=len(measured),
        )
        for name, measured in times.items()
    ]


def _size(frame: Frame, name: str) -> int:
    """The bytes of a frame that were sent; half floats have been widened to float32."""
    if frame.encoded:
        return len(frame.encoded["color"])
    return frame.color.nbytes // 2 if name in ("float16", "bfloat16") else frame.color.nbytes
