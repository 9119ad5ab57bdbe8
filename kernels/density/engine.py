"""The engines for the CPU and for CUDA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from lumigrad.kernels import _native
from lumigrad.kernels.per_device import PerDevice
from lumigrad.kernels.stages import StageTimes


class Engine(Protocol):
    """Runs the extension's functions for density control on one kind of device; used by one thread only."""

    def run(self, function: str, *arguments: Any, **arrays: Any) -> StageTimes:
        """Calls a function of the extension.

        Args:
            function: Its name without the prefix for the device: "add_noise" for `density_add_noise`.
            arguments: Its arguments that are not arrays.
            arrays: Tensors by name; None for an absent one.

        Returns:
            The times of its stages.
        """


class CpuEngine:
    """Runs the CPU loops."""

    def run(self, function: str, *arguments: Any, **arrays: Any) -> StageTimes:
        """Calls a function of the extension."""
        spent = {function: getattr(_native, f"density_{function}")(*arguments, **arrays)}
        return lambda: spent


class CudaEngine:
    """Launches the CUDA kernels, on the stream that is current at the time of the call."""

    def __init__(self, native: Any, device: int, current_stream: Callable[[], int]) -> None:
        """Calls functions of `native`; `current_stream` returns the handle of the CUDA stream to use."""
        self._native = native
        self._device = device
        self._current_stream = current_stream

    def run(self, function: str, *arguments: Any, **arrays: Any) -> StageTimes:
        """Queues the kernels of a function of the extension."""
        place = self._native.DensityCudaPlace(self._device, self._current_stream())
        stages = getattr(self._native, f"density_cuda_{function}")(place, *arguments, **arrays)

        def spent() -> dict[str, float]:
            milliseconds = stages.milliseconds()
            return {} if milliseconds is None else {function: milliseconds}

        return spent


engine_for: PerDevice[Engine] = PerDevice(
    "means", CpuEngine, lambda index, current_stream: CudaEngine(_native, index, current_stream)
)
