"""Engines that call the extension's functions by name, on the CPU and on CUDA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from lumigrad.kernels import _native
from lumigrad.kernels.stages import StageTimes


class Functions(Protocol):
    """Runs the extension's functions of one kind on one device; used by one thread only."""

    def run(self, function: str, *arguments: Any, **arrays: Any) -> StageTimes:
        """Calls a function of the extension.

        Args:
            function: Name without the prefix for kind and device: "add_noise" for `density_cuda_add_noise`.
            arguments: Arguments before the arrays.
            arrays: Tensors by name, None for an absent one, and numbers.

        Returns:
            The function's time under its name, if the function measures one.
        """


class CpuFunctions:
    """Runs the CPU loops.

    Attributes:
        kind: Prefix of the functions, such as "density".
    """

    kind: ClassVar[str]

    def __init__(self, *workspaces: Any) -> None:
        """Passes `workspaces` to all functions, before their arguments."""
        self._workspaces = workspaces

    def run(self, function: str, *arguments: Any, **arrays: Any) -> StageTimes:
        """Calls a function of the extension."""
        spent = {function: getattr(_native, f"{self.kind}_{function}")(*self._workspaces, *arguments, **arrays)}
        return lambda: spent


class CudaFunctions:
    """Launches the CUDA kernels, on the stream that is current at the time of the call.

    Attributes:
        kind: Prefix of the functions, such as "density".
    """

    kind: ClassVar[str]

    def __init__(self, native: Any, device: int, current_stream: Callable[[], int]) -> None:
        """Calls functions of `native`; `current_stream` returns the handle of the CUDA stream to use."""
        self._native = native
        self._device = device
        self._current_stream = current_stream

    def run(self, function: str, *arguments: Any, **arrays: Any) -> StageTimes:
        """Queues the kernels of a function of the extension."""
        call = getattr(self._native, f"{self.kind}_cuda_{function}")
        times = call(self._device, self._current_stream(), *arguments, **arrays)

        def spent() -> dict[str, float]:
            stages = times.milliseconds()
            return {function: stages[0][1]} if stages else {}

        return spent
