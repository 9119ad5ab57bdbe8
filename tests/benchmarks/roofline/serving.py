"""What a worker on one GPU may serve: the slowest of its kernels, its copies, its files and its calls."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from lumigrad.server.engines.images import jpeg_of, png_of
from tests.benchmarks.roofline.device import DEVICES, Need, seconds

FORWARD = ("project", "sort", "bin", "blend")
# Host threads that make files, and milliseconds of a call in one Python process: that of a small render, measured
# between a client and a worker on one machine, less its kernels.
FILE_THREADS, CALL_MS = 16, 1.0


def print_rates(gaussians: dict[str, Need], pixels: int) -> None:
    """Print frames per second of views of a million Gaussians, and what bounds them."""
    frame = _photograph()
    jpeg, png = _milliseconds(lambda: jpeg_of(frame, 85)), _milliseconds(lambda: png_of(frame))
    print(f"\nA file of 1920x1080 takes one thread here {jpeg:.1f} ms as JPEG, {png:.1f} ms as PNG.\n")
    print(
        "| device | frames | kernels, ms | copy, ms | files, ms | call, ms | at most, frames/s |\n" + "|---" * 7 + "|"
    )
    for device in DEVICES:
        kernels = 1e3 * seconds(gaussians, FORWARD, device)
        for name, size, file in (("uint8", 3, 0.0), ("JPEG", 3, jpeg), ("PNG", 3, png), ("float32", 12, 0.0)):
            copy = 1e3 * pixels * size / device.host_bytes
            files = file / FILE_THREADS
            rate = 1e3 / max(kernels, copy, files, CALL_MS)
            print(f"| {device.name} | {name} | {kernels:.2f} | {copy:.2f} | {files:.2f} | {CALL_MS} | {rate:.0f} |")


# Images of a batch, the bytes of a pixel (colour in bytes, depth in float16), and the size.
BATCH, BATCH_PIXEL_BYTES, BATCH_SIZE = 64, 5, (640, 480)


def print_batches(view: dict[str, Need]) -> None:
    """Print batches per second of images with depth, each of which needs what `view` needs."""
    width, height = BATCH_SIZE
    print(
        f"\n| device | kernels of {BATCH} images of {width}x{height}, ms | copy, ms | at most, images/s |\n"
        + "|---" * 4
        + "|"
    )
    for device in DEVICES:
        kernels = 1e3 * BATCH * seconds(view, FORWARD, device)
        copy = 1e3 * BATCH * width * height * BATCH_PIXEL_BYTES / device.host_bytes
        print(f"| {device.name} | {kernels:.1f} | {copy:.1f} | {1e3 * BATCH / max(kernels, copy, CALL_MS):.0f} |")


def _photograph() -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """1920x1080 of smooth shapes with some grain."""
    y, x = np.mgrid[:1080, :1920] / 200.0
    waves = np.stack([np.sin(x + c) * np.cos(y * (1 + 0.3 * c)) for c in range(3)], -1)
    return (127 + 100 * waves + np.random.default_rng(0).normal(0, 4, waves.shape)).clip(0, 255).astype(np.uint8)


def _milliseconds(call: Callable[[], object]) -> float:
    times = []
    for _ in range(5):
        begin = time.thread_time()
        call()
        times.append(time.thread_time() - begin)
    return 1e3 * min(times)
