"""Which compiled engine serves a device, and what it keeps from call to call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from lumigrad.kernels import _native
from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.stages import StageTimes

Arrays = Mapping[str, Any]  # Tensors, or None where there is none.


class Engine(Protocol):
    """Renders and differentiates one view at a time; belongs to one thread."""

    @property
    def prepared(self) -> int:
        """Names what the last forward pass left in the workspace; 0: nothing that a backward pass could use."""

    def forward(self, camera: Any, settings: Any, arrays: Arrays) -> StageTimes:
        """Renders a view into the given arrays."""

    def backward(self, camera: Any, settings: Any, arrays: Arrays, prepared: int) -> StageTimes:
        """Differentiates a view into the given arrays; `prepared` is what the engine said after its forward pass."""


class CpuEngine:
    """The loops for the CPU, and their workspace."""

    def __init__(self) -> None:
        self._workspace = _native.SphereWorkspace()

    @property
    def prepared(self) -> int:
        """Names what the last forward pass left in the workspace."""
        return int(self._workspace.prepared)

    def forward(self, camera: Any, settings: Any, arrays: Arrays) -> StageTimes:
        """Renders a view into the given arrays."""
        _native.sphere_forward(self._workspace, camera, settings, **arrays)
        return self._times()

    def backward(self, camera: Any, settings: Any, arrays: Arrays, prepared: int) -> StageTimes:
        """Differentiates a view into the given arrays."""
        _native.sphere_backward(self._workspace, camera, settings, **arrays, prepared=prepared)
        return self._times()

    def _times(self) -> StageTimes:
        times = dict(zip(_native.SPHERE_STAGES, self._workspace.milliseconds, strict=False))
        return lambda: times


class CudaEngine:
    """The kernels for a CUDA device; they run on the stream that is current when they are called."""

    prepared = 0

    def __init__(self, native: Any, device: int, current_stream: Callable[[], int]) -> None:
        """Uses the functions of `native`; `current_stream` gives the handle of the stream."""
        self._native = native
        self._current_stream = current_stream
        self.session = native.SphereCudaSession(device)

    def forward(self, camera: Any, settings: Any, arrays: Arrays) -> StageTimes:
        """Queues the rendering of a view."""
        run = self._native.sphere_cuda_forward
        return self._times(run(self.session, self._current_stream(), camera, settings, **arrays))

    def backward(self, camera: Any, settings: Any, arrays: Arrays, prepared: int) -> StageTimes:
        """Queues the differentiation of a view; it is prepared anew, which costs a GPU little."""
        run = self._native.sphere_cuda_backward
        return self._times(run(self.session, self._current_stream(), camera, settings, **arrays))

    def _times(self, stages: Any) -> StageTimes:
        return lambda: dict(stages.milliseconds())


@dataclass
class _Local(threading.local):
    engines: dict[torch.device, Engine] = field(default_factory=dict)


_local = _Local()


def engine_for(device: torch.device) -> Engine:
    """This thread's engine for a device.

    Raises:
        ArgumentError: There is none for this kind of device, or none in this build.
    """
    engine = _local.engines.get(device)
    if engine is None:
        engine = _make(device)
        _local.engines[device] = engine
    return engine


def _make(device: torch.device) -> Engine:
    if device.type == "cpu":
        return CpuEngine()
    if device.type != "cuda":
        raise ArgumentError("positions", "tensors on the CPU or a CUDA device", f"tensors on {device}")
    if not _native.CUDA_BUILT:
        expected = "tensors on the CPU: this build has no CUDA kernels; install with nvcc present for a GPU"
        raise ArgumentError("positions", expected, f"tensors on {device}")
    return CudaEngine(_native, device.index or 0, lambda: torch.cuda.current_stream(device).cuda_stream)
