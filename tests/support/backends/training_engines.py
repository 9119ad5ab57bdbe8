"""The engines of training, with one interface, on which the same tests run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import torch

from lumigrad.kernels import _native, training
from lumigrad.kernels.training.engine import CudaEngine
from support.backends import cuda_devices
from support.backends.cuda_devices import CudaDevice
from support.backends.engines import using
from support.backends.gaussian_engines import instruction_set


@dataclass(frozen=True)
class Engine:
    """`lumigrad.kernels.training` with tensors on one device."""

    name: str
    device: torch.device
    # The context in which it must be called.
    _within: Callable[[], AbstractContextManager[None]] = field(default=nullcontext)

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls the function with the tensors among its arguments on the device."""
        moved = [self.moved(value) for value in args], {name: self.moved(value) for name, value in kwargs.items()}
        with self._within():
            return function(*moved[0], **moved[1])

    def moved(self, value: Any) -> Any:
        """Moves a tensor, or those in a dict or dataclass, to the device; returns anything else unchanged."""
        if isinstance(value, torch.Tensor):
            return value.to(self.device)
        if isinstance(value, dict):
            return {name: self.moved(item) for name, item in value.items()}
        if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{item.name: self.moved(getattr(value, item.name)) for item in fields(value)})
        return value


def _cpu(isa: str) -> Callable[[], Engine]:
    return lambda: Engine(f"cpu-{isa}", torch.device("cpu"), lambda: instruction_set(isa))


def cpu() -> Engine:
    """The CPU with its best instruction set."""
    return Engine("cpu", torch.device("cpu"))


def on_cuda(cuda: CudaDevice) -> Engine:
    """A fresh engine on a device."""
    engine = CudaEngine(cuda.native, 0, cuda.current_stream)
    return Engine(cuda.name, cuda.device, lambda: using(training, engine))


# A name per machine; every instruction set of the CPU is one. "gpu" carries the marker of the same name; "emulation"
# runs the kernels for a GPU without one.
ENGINES: dict[str, Callable[[], Engine]] = {
    **{f"cpu-{isa}": _cpu(isa) for isa in _native.available_isas()},
    "emulation": lambda: on_cuda(cuda_devices.emulated()),
    "gpu": lambda: Engine("gpu", torch.device("cuda", 0)),
}
