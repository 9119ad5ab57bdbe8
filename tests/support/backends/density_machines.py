"""The engines of density control, on which the same tests run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import torch

from lumigrad.kernels import _native, density
from lumigrad.kernels.density.engine import CpuEngine, CudaEngine
from support.backends import cuda_devices
from support.backends.cuda_devices import CudaDevice
from support.backends.engines import using
from support.backends.gaussian_engines import instruction_set

# A context in which lumigrad.kernels.density uses an engine; its value is the device for tensors.
Machine = Callable[[], AbstractContextManager[torch.device]]


@contextmanager
def _on_cpu(isa: str) -> Iterator[torch.device]:
    with instruction_set(isa), using(density, CpuEngine()):
        yield torch.device("cpu")


@contextmanager
def _on(cuda: CudaDevice) -> Iterator[torch.device]:
    with using(density, CudaEngine(cuda.native, 0, cuda.current_stream)):
        yield cuda.device


# A name per machine; every instruction set of the CPU is one. "gpu" carries the marker of the same name; "emulation"
# runs the kernels for a GPU without one.
MACHINES: dict[str, Machine] = {
    **{f"cpu-{isa}": partial(_on_cpu, isa) for isa in _native.available_isas()},
    "emulation": lambda: _on(cuda_devices.emulated()),
    "gpu": lambda: _on(cuda_devices.gpu()),
}
# The slowest of the instruction sets: "portable", unless a build has one set alone.
SLOWEST: Machine = next(iter(MACHINES.values()))
