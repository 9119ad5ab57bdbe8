"""Which compiled engine serves a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from lumigrad.kernels import _native
from lumigrad.kernels.per_device import PerDevice
from lumigrad.kernels.stages import StageTimes


class Engine(Protocol):
    """Runs the extension's functions for density control on one kind of device; belongs to one thread."""

    def run(self, function: str, *arguments: Any, **arrays: Any) -> StageTimes:
        """Calls one of them.

        Args:
            function: Its name without what says where it runs: "add_noise" for `density_add_noise`.
            arguments: What is no array.
            arrays: Tensors by name, or None where there is none.

        Returns:
            How long it took.
        """


class CpuEngine:
    """The loops for the CPU."""

    def run(self, function: str, *arguments: Any, **arrays: Any) -> StageTimes:
        """Calls one of them."""
        spent = {function: getattr(_native, f"density_{function}")(*arguments, **arrays)}
        return lambda: spent


class CudaEngine:
    """The kernels for a CUDA device; they run on the stream that is current when they are called."""

    def __init__(self, native: Any, device: int, current_stream: Callable[[], int]) -> None:
        """Uses the functions of `native`; `current_stream` gives the handle of the stream."""
        self._native = native
        self._device = device
        self._current_stream = current_stream

    def run(self, function: str, *arguments: Any, **arrays: Any) -> StageTimes:
        """Queues one of them."""
        place = self._native.DensityCudaPlace(self._device, self._current_stream())
        stages = getattr(self._native, f"density_cuda_{function}")(place, *arguments, **arrays)

        def spent() -> dict[str, float]:
            milliseconds = stages.milliseconds()
            return {} if milliseconds is None else {function: milliseconds}

        return spent


engine_for: PerDevice[Engine] = PerDevice(
    "means", CpuEngine, lambda index, current_stream: CudaEngine(_native, index, current_stream)
)
