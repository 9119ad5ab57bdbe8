"""The engines of training, with one interface, on which the same tests run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any
from unittest import mock

import torch

from lumigrad.kernels import _native, training
from lumigrad.kernels.training.engine import CudaEngine
from support.backends import emulation
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


def on_cuda(name: str, device: torch.device, cuda: CudaEngine) -> Engine:
    """A CUDA device, or the emulated one, whose engine is `cuda`."""

    @contextmanager
    def within() -> Iterator[None]:
        """Tensors on `device` go to `cuda`."""
        with ExitStack() as stack:
            for name, module in list(sys.modules.items()):
                if name.startswith(f"{training.__name__}.") and hasattr(module, "engine_for"):
                    stack.enter_context(mock.patch.object(module, "engine_for", lambda _: cuda))
            yield

    return Engine(name, device, within)


def _emulation() -> Engine:
    return on_cuda("emulation", torch.device("cpu"), CudaEngine(emulation.load("_emulation"), 0, lambda: 0))


def _gpu() -> Engine:
    return Engine("gpu", torch.device("cuda", 0))


# A name per machine; every instruction set of the CPU is one. "gpu" carries the marker of the same name; "emulation"
# runs the kernels for a GPU without one.
ENGINES: dict[str, Callable[[], Engine]] = {
    **{f"cpu-{isa}": _cpu(isa) for isa in _native.available_isas()},
    "emulation": _emulation,
    "gpu": _gpu,
}
