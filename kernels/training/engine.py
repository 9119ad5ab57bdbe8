"""The engines for the CPU and for CUDA, with the workspaces that they reuse between calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from lumigrad.kernels import _native
from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.per_device import PerDevice
from lumigrad.kernels.stages import StageTimes

Arrays = Mapping[str, Any]  # Tensors (None for an absent one) and numbers by name.


class Engine(Protocol):
    """Runs optimiser steps and image losses on one device; used by one thread only."""

    def adam(self, groups: list[Arrays], settings: Any, sums: Any) -> StageTimes:
        """Updates all parameters in place; writes statistics of their gradients to `sums`."""

    def image_loss(self, arrays: Arrays) -> StageTimes:
        """Writes the values and the gradient of an image loss."""

    def mean(self, slope: float, to: Any, arrays: Arrays) -> StageTimes:
        """Writes the mean of values to `to`, and adds `slope` to their gradient."""

    def plane_loss(self, arrays: Arrays) -> StageTimes:
        """Writes what planes differ by, and the gradient of the mean."""

    def expose(self, arrays: Arrays) -> None:
        """Writes exposed images."""

    def expose_backward(self, arrays: Arrays) -> None:
        """Turns the gradient of exposed images into that of the images, and writes that of the matrices."""

    def center_exposures(self, matrices: Any) -> None:
        """Moves all matrices alike, so that their mean is the identity."""


class CpuEngine:
    """Runs the CPU loops, with a workspace that it reuses."""

    def __init__(self) -> None:
        self._workspace = _native.TrainingWorkspace()

    def adam(self, groups: list[Arrays], settings: Any, sums: Any) -> StageTimes:
        """Updates all parameters in place."""
        if any(group["factors"] is not None for group in groups):
            raise ArgumentError("gradient", "a tensor on the CPU", "a gradient of harmonics by factors")
        _native.training_adam(self._workspace, groups, settings, sums)
        return self._times("adam")

    def image_loss(self, arrays: Arrays) -> StageTimes:
        """Writes the values and the gradient of an image loss."""
        _native.training_image_loss(self._workspace, **arrays)
        return self._times("image_loss")

    def mean(self, slope: float, to: Any, arrays: Arrays) -> StageTimes:
        """Writes the mean of values to `to`, and adds `slope` to their gradient."""
        _native.training_mean(self._workspace, slope, to, **arrays)
        return self._times("mean")

    def plane_loss(self, arrays: Arrays) -> StageTimes:
        """Writes what planes differ by, and the gradient of the mean."""
        _native.training_plane_loss(self._workspace, **arrays)
        return self._times("plane_loss")

    def normal_loss(self, arrays: Arrays) -> None:
        """Writes the consistency of normals, and its gradients."""
        _native.training_normal_loss(self._workspace, **arrays)

    def expose(self, arrays: Arrays) -> None:
        """Writes exposed images."""
        _native.training_expose(**arrays)

    def expose_backward(self, arrays: Arrays) -> None:
        """Turns the gradient of exposed images into that of the images, and writes that of the matrices."""
        _native.training_expose_backward(self._workspace, **arrays)

    def center_exposures(self, matrices: Any) -> None:
        """Moves all matrices alike, so that their mean is the identity."""
        _native.training_center_exposures(matrices=matrices)

    def _times(self, stage: str) -> StageTimes:
        times = {stage: self._workspace.milliseconds}
        return lambda: times


class CudaEngine:
    """Launches the CUDA kernels, on the stream that is current at the time of the call."""

    def __init__(self, native: Any, device: int, current_stream: Callable[[], int]) -> None:
        """Calls functions of `native`; `current_stream` returns the handle of the CUDA stream to use."""
        self._native = native
        self._device = device
        self._current_stream = current_stream

    def adam(self, groups: list[Arrays], settings: Any, sums: Any) -> StageTimes:
        """Queues the update of all parameters."""
        return self._times(
            self._native.training_cuda_adam(self._device, self._current_stream(), groups, settings, sums)
        )

    def image_loss(self, arrays: Arrays) -> StageTimes:
        """Queues the image loss."""
        return self._times(self._native.training_cuda_image_loss(self._device, self._current_stream(), **arrays))

    def mean(self, slope: float, to: Any, arrays: Arrays) -> StageTimes:
        """Queues the mean of values."""
        return self._times(self._native.training_cuda_mean(self._device, self._current_stream(), slope, to, **arrays))

    def plane_loss(self, arrays: Arrays) -> StageTimes:
        """Queues the comparison of planes."""
        return self._times(self._native.training_cuda_plane_loss(self._device, self._current_stream(), **arrays))

    def expose(self, arrays: Arrays) -> None:
        """Queues the exposure of images."""
        self._native.training_cuda_expose(self._device, self._current_stream(), **arrays)

    def expose_backward(self, arrays: Arrays) -> None:
        """Queues the gradients of exposed images."""
        self._native.training_cuda_expose_backward(self._device, self._current_stream(), **arrays)

    def center_exposures(self, matrices: Any) -> None:
        """Queues the motion of all matrices."""
        self._native.training_cuda_center_exposures(self._device, self._current_stream(), matrices=matrices)

    @staticmethod
    def _times(times: Any) -> StageTimes:
        return lambda: dict(times.milliseconds())


engine_for: PerDevice[Engine] = PerDevice(
    "tensors", CpuEngine, lambda index, current_stream: CudaEngine(_native, index, current_stream)
)
