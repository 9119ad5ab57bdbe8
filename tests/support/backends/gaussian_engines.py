"""The Gaussian engines, with one interface, on which the same tests run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor

from lumigrad.kernels import _native, gaussians
from lumigrad.kernels.gaussians.engine import CudaEngine
from support.backends import cuda_devices
from support.backends.cuda_devices import CudaDevice, Device
from support.backends.engines import emulated


@dataclass(frozen=True)
class Engine:
    """`lumigrad.kernels.gaussians` with tensors on one device; takes and returns tensors on the CPU."""

    name: str
    device: torch.device
    # Whether gradients are bitwise reproducible by default.
    repeatable: bool
    _forward: Callable[..., gaussians.Forward] = field(default=gaussians.forward)
    _backward: Callable[..., gaussians.Backward] = field(default=gaussians.backward)
    # The context in which it must be called.
    _within: Callable[[], AbstractContextManager[None]] = field(default=nullcontext)

    def forward(
        self,
        scene: gaussians.Gaussians,
        cameras: Sequence[gaussians.Camera],
        settings: gaussians.Settings,
        *,
        background: Tensor | None = None,
        transforms: Sequence[gaussians.Transform] = (),
        rays: Tensor | None = None,
        outputs: Sequence[str] = ("color",),
        retain: bool = False,
    ) -> tuple[dict[str, Tensor], gaussians.State | None]:
        """Outputs by name, and the state for `backward` if it is to be retained."""
        tensors = {item.name: getattr(scene, item.name) for item in fields(scene)}
        moved = {name: None if value is None else value.to(self.device) for name, value in tensors.items()}
        with self._within():
            result = self._forward(
                gaussians.Gaussians(**moved), cameras, settings,
                background=None if background is None else background.to(self.device), transforms=transforms,
                rays=None if rays is None else rays.to(self.device), outputs=outputs, retain=retain,
            )  # fmt: skip
        return {name: value.cpu() for name, value in result.outputs.items()}, result.state

    def backward(
        self, state: gaussians.State | None, output_gradients: Mapping[str, Tensor], wanted: Sequence[str] | None
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Gradients by name, and which Gaussians took part in a pixel."""
        upstream = {name: value.to(self.device) for name, value in output_gradients.items()}
        with self._within():
            result = self._backward(state, upstream, wanted)
        return {name: value.cpu() for name, value in result.gradients.items()}, result.touched.cpu()


@contextmanager
def instruction_set(isa: str) -> Iterator[None]:
    """The CPU's loops as compiled for one instruction set."""
    before = _native.current_isa()
    _native.set_isa(isa)
    try:
        yield
    finally:
        _native.set_isa(before)


def _cpu(isa: str) -> Callable[[], Engine]:
    return lambda: Engine(f"cpu-{isa}", torch.device("cpu"), True, _within=lambda: instruction_set(isa))


def cpu() -> Engine:
    """The CPU with its best instruction set."""
    return Engine("cpu", torch.device("cpu"), True)


def device_on(cuda: CudaDevice) -> Device:
    """A fresh engine on a device."""
    engine = CudaEngine(cuda.native, 0, cuda.current_stream)
    forward, backward = emulated(gaussians.forward, engine), emulated(gaussians.backward, engine)
    return Device(cuda.native, engine, Engine(cuda.name, cuda.device, False, forward, backward))


# A name per machine; every instruction set of the CPU is one. "gpu" carries the marker of the same name; "emulation"
# runs the kernels for a GPU without one.
ENGINES: dict[str, Callable[[], Engine]] = {
    **{f"cpu-{isa}": _cpu(isa) for isa in _native.available_isas()},
    "emulation": lambda: device_on(cuda_devices.emulated()).engine,
    "gpu": lambda: Engine("gpu", torch.device("cuda", 0), False),
}
