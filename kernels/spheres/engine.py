"""Which compiled engine serves a device, and what it keeps from call to call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from lumigrad.kernels import _native
from lumigrad.kernels.per_device import PerDevice
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


engine_for: PerDevice[Engine] = PerDevice(
    "positions", CpuEngine, lambda index, current_stream: CudaEngine(_native, index, current_stream)
)
