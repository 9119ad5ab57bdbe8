"""The engines of density control, on which the same tests run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from lumigrad.kernels import _native, density
from lumigrad.kernels.density.engine import CpuEngine, CudaEngine
from lumigrad.kernels.functions import Functions
from support.backends import emulation
from support.backends.engines import using
from support.backends.gaussian_engines import instruction_set

# A context in which lumigrad.kernels.density uses an engine; its value is the device for tensors.
Machine = Callable[[], AbstractContextManager[torch.device]]


@contextmanager
def _on(engine: Functions, device: torch.device) -> Iterator[torch.device]:
    with using(density, engine):
        yield device


def _cpu(isa: str) -> Machine:
    @contextmanager
    def machine() -> Iterator[torch.device]:
        with instruction_set(isa), _on(CpuEngine(), torch.device("cpu")) as device:
            yield device

    return machine


def _emulation() -> AbstractContextManager[torch.device]:
    return _on(CudaEngine(emulation.load("_emulation"), 0, lambda: 0), torch.device("cpu"))


def _gpu() -> AbstractContextManager[torch.device]:
    stream = torch.cuda.current_stream
    return _on(CudaEngine(_native, 0, lambda: stream().cuda_stream), torch.device("cuda", 0))


# A name per machine; every instruction set of the CPU is one. "gpu" carries the marker of the same name; "emulation"
# runs the kernels for a GPU without one.
MACHINES: dict[str, Machine] = {
    **{f"cpu-{isa}": _cpu(isa) for isa in _native.available_isas()},
    "emulation": _emulation,
    "gpu": _gpu,
}
# The slowest of the instruction sets: "portable", unless a build has one set alone.
SLOWEST: Machine = next(iter(MACHINES.values()))
