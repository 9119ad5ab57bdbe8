"""The mesh engines, with one interface, on which the same tests run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lumigrad.kernels import _native, meshes
from lumigrad.kernels.meshes.engine import CudaEngine
from support.backends import cuda_devices
from support.backends.cuda_devices import CudaDevice, Device
from support.backends.engines import using
from support.backends.gaussian_engines import instruction_set


@dataclass(frozen=True)
class Engine:
    """`lumigrad.kernels.meshes` with tensors on one device; takes and returns tensors on the CPU."""

    name: str
    device: torch.device
    # Whether gradients are bitwise reproducible.
    repeatable: bool
    # The context in which it must be called.
    _within: Callable[[], AbstractContextManager[None]] = field(default=nullcontext)

    def mesh(self, vertices: Tensor, faces: Tensor) -> meshes.Mesh:
        """Registers a mesh."""
        with self._within():
            return meshes.Mesh.build(vertices.to(self.device), faces.to(self.device))

    def moved(self, mesh: meshes.Mesh, vertices: Tensor) -> meshes.Mesh:
        """The same faces with other vertices."""
        with self._within():
            return mesh.moved(vertices.to(self.device))

    def grid(self, distances: Tensor, voxel_size: float) -> meshes.Grid:
        """A grid on the device."""
        return meshes.Grid(distances.to(self.device), voxel_size)

    def evaluate(
        self,
        spheres: Tensor,
        world: meshes.World,
        settings: meshes.Settings,
        *,
        environments: Tensor | None = None,
        outputs: Sequence[str] = ("cost",),
        per_instance: bool = False,
        retain: bool = False,
        checked: bool = False,
    ) -> tuple[dict[str, Tensor], meshes.State | None]:
        """Outputs by name, and the state for `backward` if it is to be retained."""
        with self._within():
            result = meshes.evaluate(
                spheres.to(self.device), world, settings,
                environments=None if environments is None else environments.to(self.device), outputs=outputs,
                per_instance=per_instance, retain=retain, checked=checked,
            )  # fmt: skip
        return {name: value.cpu() for name, value in result.outputs.items()}, result.state

    def backward(
        self, state: meshes.State | None, output_gradients: Mapping[str, Tensor], wanted: Sequence[str]
    ) -> dict[str, Tensor]:
        """Gradients by name."""
        upstream = {name: value.to(self.device) for name, value in output_gradients.items()}
        with self._within():
            result = meshes.backward(state, upstream, wanted)
        return {name: value.cpu() for name, value in result.gradients.items()}

    def stages(self, spheres: Tensor, world: meshes.World, settings: meshes.Settings) -> dict[str, float]:
        """Milliseconds by stage of a query, once it has finished."""
        with self._within():
            result = meshes.evaluate(spheres.to(self.device), world, settings)
        result.outputs["cost"].cpu()
        return result.stages()

    def esdf(self, world: meshes.World, *arguments: object, **options: object) -> Tensor:
        """Distances on a grid."""
        with self._within():
            return meshes.esdf(world, *arguments, **options).cpu()  # type: ignore[arg-type]


def _cpu(isa: str) -> Callable[[], Engine]:
    return lambda: Engine(f"cpu-{isa}", torch.device("cpu"), True, lambda: instruction_set(isa))


def cpu() -> Engine:
    """The CPU with its best instruction set."""
    return Engine("cpu", torch.device("cpu"), True)


def on_cuda(name: str, device: torch.device, cuda: CudaEngine) -> Engine:
    """A CUDA device, or the emulated one, whose engine is `cuda`."""
    return Engine(name, device, False, lambda: using(meshes, cuda))


def device_on(cuda: CudaDevice) -> Device:
    """A fresh engine on a device."""
    engine = CudaEngine(cuda.native, 0, cuda.current_stream)
    return Device(cuda.native, engine, on_cuda(cuda.name, cuda.device, engine))


# A name per machine; every instruction set of the CPU is one. "gpu" carries the marker of the same name; "emulation"
# runs the kernels for a GPU without one.
ENGINES: dict[str, Callable[[], Engine]] = {
    **{f"cpu-{isa}": _cpu(isa) for isa in _native.available_isas()},
    "emulation": lambda: device_on(cuda_devices.emulated()).engine,
    "gpu": lambda: Engine("gpu", torch.device("cuda", 0), False),
}
