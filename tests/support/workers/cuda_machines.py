"""Workers on a CUDA device and on the emulated one, for the same tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from lumigrad.v1 import camera_pb2
from support.backends import emulation
from support.calls.raw_calls import opencv_camera
from support.workers.worker import WorkerProcess, worker


@dataclass(frozen=True)
class Machine:
    """A kind of device.

    Attributes:
        count: The number of spheres or Gaussians of a scene that takes it a while.
        size: The pixels on each side of an image that takes it a while.
        slow: A call that takes it seconds: the number of primitives that all cover the image, one behind the other, the
            number of views, and pixels on each side of each.
    """

    name: str
    count: int
    size: int
    slow: tuple[int, int, int]

    @property
    def is_emulated(self) -> bool:
        """Whether a test can delay the device."""
        return self.name == "emulation"

    @contextmanager
    def worker(self, *options: str, faults: Path | None = None) -> Iterator[WorkerProcess]:
        """A worker on this kind of device; it meets the faults armed in a folder."""
        if self.is_emulated:
            emulation.load("_emulation")
            settings: dict[str, Any] = {"emulated": True}
        else:
            settings = {"supervised": faults is not None}
        options = ("--device", "cpu" if self.is_emulated else "cuda:0", *options)
        with worker(*options, faults=faults, **settings) as process:
            yield process
            assert "mistake: " not in process.log, process.log

    def camera(self, x: float = 0.0) -> camera_pb2.Camera:
        """A camera of the machine's size."""
        return opencv_camera(self.size, self.size, x=x)


EMULATION = Machine("emulation", 300, 48, (40, 200, 48))
# The pixels and views are the most that a worker accepts by default.
GPU = Machine("gpu", 5000, 256, (50_000, 256, 512))
NEEDS_GPU = (pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"))
MACHINES = [pytest.param(EMULATION, id=EMULATION.name), pytest.param(GPU, id=GPU.name, marks=NEEDS_GPU)]
