"""The engines for the CPU and for CUDA, with the workspaces that they reuse between calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from lumigrad.kernels import _native
from lumigrad.kernels.per_device import PerDevice
from lumigrad.kernels.stages import StageTimes

Arrays = Mapping[str, Any]  # Tensors, or None where there is none.


class Engine(Protocol):
    """Renders and differentiates one view at a time; used by one thread only."""

    @property
    def prepared(self) -> int:
        """Identifies the workspace's state after the last forward pass; 0 if a backward pass cannot use it."""

    def forward(self, camera: Any, settings: Any, arrays: Arrays) -> StageTimes:
        """Renders a view into the given arrays."""

    def backward(self, camera: Any, settings: Any, arrays: Arrays, prepared: int) -> StageTimes:
        """Writes the gradients of a view to the given arrays; `prepared` is the engine's after its forward pass."""


class CpuEngine:
    """Runs the CPU loops, with a workspace that it reuses."""

    def __init__(self) -> None:
        self._workspace = _native.SphereWorkspace()

    @property
    def prepared(self) -> int:
        """Identifies the workspace's state after the last forward pass."""
        return int(self._workspace.prepared)

    def forward(self, camera: Any, settings: Any, arrays: Arrays) -> StageTimes:
        """Renders a view into the given arrays."""
        _native.sphere_forward(self._workspace, camera, settings, **arrays)
        return self._times()

    def backward(self, camera: Any, settings: Any, arrays: Arrays, prepared: int) -> StageTimes:
        """Writes the gradients of a view to the given arrays."""
        _native.sphere_backward(self._workspace, camera, settings, **arrays, prepared=prepared)
        return self._times()

    def _times(self) -> StageTimes:
        times = dict(zip(_native.SPHERE_STAGES, self._workspace.milliseconds, strict=False))
        return lambda: times


class CudaEngine:
    """Launches the CUDA kernels, on the stream that is current at the time of the call."""

    prepared = 0

    def __init__(self, native: Any, device: int, current_stream: Callable[[], int]) -> None:
        """Calls functions of `native`; `current_stream` returns the handle of the CUDA stream to use."""
        self._native = native
        self._current_stream = current_stream
        self.session = native.SphereCudaSession(device)

    def forward(self, camera: Any, settings: Any, arrays: Arrays) -> StageTimes:
        """Queues the rendering of a view."""
        run = self._native.sphere_cuda_forward
        return self._times(run(self.session, self._current_stream(), camera, settings, **arrays))

    def backward(self, camera: Any, settings: Any, arrays: Arrays, prepared: int) -> StageTimes:
        """Queues the backward pass of a view; always prepares the view again, which is cheap on a GPU."""
        run = self._native.sphere_cuda_backward
        return self._times(run(self.session, self._current_stream(), camera, settings, **arrays))

    def _times(self, stages: Any) -> StageTimes:
        return lambda: dict(stages.milliseconds())


engine_for: PerDevice[Engine] = PerDevice(
    "positions", CpuEngine, lambda index, current_stream: CudaEngine(_native, index, current_stream)
)
