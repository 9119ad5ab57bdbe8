"""The engines of density control, on which the same tests run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from unittest import mock

import torch

from lumigrad.kernels import _native, density
from lumigrad.kernels.density.engine import CpuEngine, CudaEngine
from lumigrad.kernels.functions import Functions
from support.backends import emulation
from support.backends.gaussian_engines import instruction_set

# A context in which lumigrad.kernels.density uses an engine; its value is the device for tensors.
Machine = Callable[[], AbstractContextManager[torch.device]]


@contextmanager
def using(engine: Functions, device: torch.device) -> Iterator[torch.device]:
    """A context in which calls use this engine."""
    with ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name.startswith(f"{density.__name__}.") and hasattr(module, "engine_for"):
                stack.enter_context(mock.patch.object(module, "engine_for", lambda _: engine))
        yield device


def _cpu(isa: str) -> Machine:
    @contextmanager
    def machine() -> Iterator[torch.device]:
        with instruction_set(isa), using(CpuEngine(), torch.device("cpu")) as device:
            yield device

    return machine


def _emulation() -> AbstractContextManager[torch.device]:
    return using(CudaEngine(emulation.load("_emulation"), 0, lambda: 0), torch.device("cpu"))


def _gpu() -> AbstractContextManager[torch.device]:
    stream = torch.cuda.current_stream
    return using(CudaEngine(_native, 0, lambda: stream().cuda_stream), torch.device("cuda", 0))


# A name per machine; every instruction set of the CPU is one. "gpu" carries the marker of the same name; "emulation"
# runs the kernels for a GPU without one.
MACHINES: dict[str, Machine] = {
    **{f"cpu-{isa}": _cpu(isa) for isa in _native.available_isas()},
    "emulation": _emulation,
    "gpu": _gpu,
}
# The slowest of the instruction sets: "portable", unless a build has one set alone.
SLOWEST: Machine = next(iter(MACHINES.values()))
