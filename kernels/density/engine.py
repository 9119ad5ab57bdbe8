"""The engines for the CPU and for CUDA."""

from __future__ import annotations

from lumigrad.kernels import _native
from lumigrad.kernels.functions import CpuFunctions, CudaFunctions, Functions
from lumigrad.kernels.per_device import PerDevice


class CpuEngine(CpuFunctions):
    """Runs the CPU loops of density control."""

    kind = "density"


class CudaEngine(CudaFunctions):
    """Launches the CUDA kernels of density control."""

    kind = "density"


engine_for: PerDevice[Functions] = PerDevice(
    "means", CpuEngine, lambda index, current_stream: CudaEngine(_native, index, current_stream)
)
