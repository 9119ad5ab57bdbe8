"""The sphere engines, with one interface, on which the same tests run."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import TypeVar
from unittest import mock

import torch
from torch import Tensor

from lumigrad.kernels import spheres
from lumigrad.kernels.spheres.engine import CudaEngine
from support.backends import cuda_devices
from support.backends.cuda_devices import CudaDevice, Device

Result = TypeVar("Result")


@dataclass(frozen=True)
class Engine:
    """`lumigrad.kernels.spheres` with tensors on one device; takes and returns tensors on the CPU."""

    name: str
    device: torch.device
    # Whether gradients are bitwise reproducible: a GPU sums them in no particular order.
    repeatable: bool
    _forward: Callable[..., spheres.Forward] = field(default=spheres.forward)
    _backward: Callable[..., spheres.Backward] = field(default=spheres.backward)

    def forward(
        self,
        positions: Tensor,
        colors: Tensor,
        radii: Tensor,
        cameras: Sequence[spheres.Camera],
        settings: spheres.Settings,
        *,
        opacities: Tensor | None = None,
        background: Tensor | None = None,
        outputs: Sequence[str] = ("color",),
        retain: bool = False,
    ) -> tuple[dict[str, Tensor], spheres.State | None]:
        """Outputs by name, and the state for `backward` if it is to be retained."""
        result = self._forward(
            positions.to(self.device), colors.to(self.device), radii.to(self.device), cameras, settings,
            opacities=None if opacities is None else opacities.to(self.device),
            background=None if background is None else background.to(self.device), outputs=outputs, retain=retain,
        )  # fmt: skip
        return {name: value.cpu() for name, value in result.outputs.items()}, result.state

    def backward(
        self, state: spheres.State | None, output_gradients: Mapping[str, Tensor], wanted: Sequence[str]
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Gradients by name, and for each sphere the number of pixels that it took part in."""
        upstream = {name: value.to(self.device) for name, value in output_gradients.items()}
        result = self._backward(state, upstream, wanted)
        return {name: value.cpu() for name, value in result.gradients.items()}, result.touched.cpu()


def emulated(function: Callable[..., Result], engine: object) -> Callable[..., Result]:
    """Wraps a function of an engine's module so that tensors on the CPU are treated as tensors on the CUDA device."""

    @functools.wraps(function)
    def run(*args: object, **kwargs: object) -> Result:
        with mock.patch(f"{function.__module__}.engine_for", lambda _: engine):
            return function(*args, **kwargs)

    return run


@contextmanager
def using(package: ModuleType, engine: object) -> Iterator[None]:
    """Has the functions of an engine's package use this engine, whatever the device of their tensors."""
    with ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name.startswith(f"{package.__name__}.") and hasattr(module, "engine_for"):
                stack.enter_context(mock.patch.object(module, "engine_for", lambda _: engine))
        yield


def device_on(cuda: CudaDevice) -> Device:
    """A fresh engine on a device."""
    engine = CudaEngine(cuda.native, 0, cuda.current_stream)
    forward, backward = emulated(spheres.forward, engine), emulated(spheres.backward, engine)
    return Device(cuda.native, engine, Engine(cuda.name, cuda.device, False, forward, backward))


# A name per machine. "gpu" carries the marker of the same name; "emulation" runs the kernels for a GPU without one.
ENGINES: dict[str, Callable[[], Engine]] = {
    "cpu": lambda: Engine("cpu", torch.device("cpu"), True),
    "emulation": lambda: device_on(cuda_devices.emulated()).engine,
    "gpu": lambda: Engine("gpu", torch.device("cuda", 0), False),
}
