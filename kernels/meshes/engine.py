"""Which compiled engine serves a device, and what it keeps from call to call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from lumigrad.kernels import _native
from lumigrad.kernels.per_device import PerDevice
from lumigrad.kernels.stages import StageTimes

Arrays = Mapping[str, Any]  # Tensors by name, or None where there is none.


class Engine(Protocol):
    """Searches meshes for the spheres of a call; belongs to one thread."""

    @property
    def key(self) -> str:
        """Names the machine: trees and solids serve all engines of one key."""

    def tree(self, host: Any, like: Any | None) -> Any:
        """The hierarchy that this machine searches, of a mesh in host memory.

        `like` is the tree of the same faces before vertices moved, if its order is to be kept.
        """

    def solid(self, tree: Any, sign: int, turned: bool) -> Any:
        """A tree of this machine as an obstacle that is not yet placed."""

    def evaluate(self, world: Any, settings: Any, arrays: Arrays) -> StageTimes:
        """Answers the query into the given arrays."""


class CpuEngine:
    """The loops for the CPU, and their workspace."""

    key = "cpu"

    def __init__(self) -> None:
        self._workspace = _native.MeshWorkspace()

    def tree(self, host: Any, like: Any | None) -> Any:
        """The host's own."""
        return host

    def solid(self, tree: Any, sign: int, turned: bool) -> Any:
        """A tree in host memory as an obstacle that is not yet placed."""
        return _native.mesh_solid(tree, sign, turned)

    def evaluate(self, world: Any, settings: Any, arrays: Arrays) -> StageTimes:
        """Answers the query into the given arrays."""
        _native.mesh_evaluate(self._workspace, world, settings, **arrays)
        times = dict(zip(_native.MESH_STAGES, self._workspace.milliseconds, strict=True))
        return lambda: times


class CudaEngine:
    """The kernels for a CUDA device; they run on the stream that is current when they are called."""

    def __init__(self, native: Any, device: int, current_stream: Callable[[], int]) -> None:
        """Uses the functions of `native`; `current_stream` gives the handle of the stream."""
        self._native = native
        self._current_stream = current_stream
        self.key = f"{native.__name__}:{device}"
        self.session = native.MeshCudaSession(device)

    def tree(self, host: Any, like: Any | None) -> Any:
        """Queues the building of a hierarchy on the device, or its fitting in the order of `like`."""
        stream = self._current_stream()
        if like is None:
            return self._native.MeshCudaTree.build(self.session, stream, host)
        return like.moved(self.session, stream, host)

    def solid(self, tree: Any, sign: int, turned: bool) -> Any:
        """A tree on the device as an obstacle that is not yet placed."""
        return self._native.mesh_cuda_solid(tree, sign, turned)

    def evaluate(self, world: Any, settings: Any, arrays: Arrays) -> StageTimes:
        """Queues the query."""
        times = self._native.mesh_cuda_evaluate(self.session, self._current_stream(), world, settings, **arrays)
        return lambda: dict(times.milliseconds())


engine_for: PerDevice[Engine] = PerDevice(
    "spheres", CpuEngine, lambda index, current_stream: CudaEngine(_native, index, current_stream)
)
