"""The engines for the CPU and for CUDA, with the workspace that the CPU reuses between calls."""

from __future__ import annotations

from lumigrad.kernels import _native
from lumigrad.kernels.functions import CpuFunctions, CudaFunctions, Functions
from lumigrad.kernels.per_device import PerDevice


class CpuEngine(CpuFunctions):
    """Runs the CPU loops of optimiser steps and image losses."""

    kind = "training"

    def __init__(self) -> None:
        super().__init__(_native.TrainingWorkspace())


class CudaEngine(CudaFunctions):
    """Launches the CUDA kernels of optimiser steps and image losses."""

    kind = "training"


engine_for: PerDevice[Functions] = PerDevice(
    "tensors", CpuEngine, lambda index, current_stream: CudaEngine(_native, index, current_stream)
)
