"""The time for which the worker's JPEG encoder holds the GIL, measured in a separate process with the meter."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np

from lumigrad.server.engines.images import jpeg_of
from tests.benchmarks.service.cases import FULL
from tests.benchmarks.service.gil_meter import GilMeter

_QUALITY = 90


def gil_share(meter: GilMeter, files: int) -> float:
    """The part of its processor time during which the JPEG encoder holds the GIL."""
    program = [sys.executable, "-m", "tests.benchmarks.service.jpeg_files", str(files)]
    environment = {**os.environ, **meter.environment}
    pipe = subprocess.PIPE
    with subprocess.Popen(program, env=environment, stdin=pipe, stdout=pipe, text=True) as encoder:
        assert encoder.stdin is not None and encoder.stdout is not None
        encoder.stdout.readline()
        watch = meter.watch(encoder.pid)
        watch.turn(on=True)
        before = watch.spent()
        print(flush=True, file=encoder.stdin)
        encoder.stdout.readline()
        spent = watch.spent() - before
    return spent.held / spent.processor


def main() -> None:
    """Encodes some views with smooth and with rough parts."""
    width, height = FULL
    rough = np.random.default_rng(0).normal(0, 6, (height, width, 3))
    rows, columns = np.mgrid[:height, :width]
    smooth = np.stack([rows / height, columns / width, (rows + columns) / (height + width)], -1) * 200 + 20
    levels = np.clip(smooth + rough * (columns > width / 2)[..., None], 0, 255).astype(np.uint8)
    jpeg_of(levels, _QUALITY)
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(int(sys.argv[1])):
        jpeg_of(levels, _QUALITY)
    print("done", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
