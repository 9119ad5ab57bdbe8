"""Which compiled loops serve a device, and what they keep from call to call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from lumigrad.kernels import _native
from lumigrad.kernels.per_device import PerDevice
from lumigrad.kernels.stages import StageTimes

Arrays = Mapping[str, Any]  # Tensors by name, or None where there is none; and plain numbers.


class Engine(Protocol):
    """Does the sums of training on one device; belongs to one thread."""

    def adam(self, groups: list[Arrays], settings: Any, sums: Any) -> StageTimes:
        """Steps all groups in place; `sums` become what is told of their gradients."""

    def image_loss(self, arrays: Arrays) -> StageTimes:
        """Writes the gradient of a loss of images, and its values."""


class CpuEngine:
    """The loops for the CPU, and their workspace."""

    def __init__(self) -> None:
        self._workspace = _native.TrainingWorkspace()

    def adam(self, groups: list[Arrays], settings: Any, sums: Any) -> StageTimes:
        """Steps all groups in place."""
        _native.training_adam(self._workspace, groups, settings, sums)
        return self._times("adam")

    def image_loss(self, arrays: Arrays) -> StageTimes:
        """Writes the gradient of a loss of images, and its values."""
        _native.training_image_loss(self._workspace, **arrays)
        return self._times("image_loss")

    def _times(self, stage: str) -> StageTimes:
        times = {stage: self._workspace.milliseconds}
        return lambda: times


class CudaEngine:
    """The kernels for a CUDA device; they run on the stream that is current when they are called."""

    def __init__(self, native: Any, device: int, current_stream: Callable[[], int]) -> None:
        """Uses the functions of `native`; `current_stream` gives the handle of the stream."""
        self._native = native
        self._device = device
        self._current_stream = current_stream

    def adam(self, groups: list[Arrays], settings: Any, sums: Any) -> StageTimes:
        """Queues the step of all groups."""
        return self._times(
            self._native.training_cuda_adam(self._device, self._current_stream(), groups, settings, sums)
        )

    def image_loss(self, arrays: Arrays) -> StageTimes:
        """Queues the loss of images."""
        return self._times(self._native.training_cuda_image_loss(self._device, self._current_stream(), **arrays))

    @staticmethod
    def _times(times: Any) -> StageTimes:
        return lambda: dict(times.milliseconds())


engine_for: PerDevice[Engine] = PerDevice(
    "tensors", CpuEngine, lambda index, current_stream: CudaEngine(_native, index, current_stream)
)
