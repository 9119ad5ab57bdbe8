"""The engines for the CPU and for CUDA, with the workspaces that they reuse between calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from lumigrad.kernels import _native
from lumigrad.kernels.per_device import PerDevice
from lumigrad.kernels.stages import StageTimes

Arrays = Mapping[str, Any]  # Tensors by name; None for an absent one.


class Engine(Protocol):
    """Runs distance queries on one device; used by one thread only."""

    @property
    def key(self) -> str:
        """Identifies the device; engines with equal keys can share trees and solids."""

    def tree(self, host: Any, like: Any | None) -> Any:
        """The bounding volume hierarchy on this device, for a mesh in host memory.

        `like` is the tree of the same faces before vertices moved: its order is kept and only its boxes are refitted.
        """

    def refitted(self, tree: Any, base: Any, vertices: torch.Tensor, most: float) -> tuple[Any, torch.Tensor] | None:
        """Refits a tree of this device to vertices there, without the mesh in host memory, and waits for it.

        Args:
            tree: The tree.
            base: A mesh in host memory of the same topology.
            vertices: f32 or f64 [V, 3].
            most: The largest coordinate that is allowed.

        Returns:
            An object with the new `tree`, and `report`, `rebuilt` and `growth` as those of a `MeshTree`, and a copy of
            the vertices as f64. None if the host must do the refit: it would refuse the vertices or build anew, or
            "auto" needs more than the tree.
        """

    def solid(self, tree: Any, sign: int, turned: bool) -> Any:
        """A tree of this device as an obstacle without a pose."""

    def evaluate(self, world: Any, settings: Any, arrays: Arrays) -> StageTimes:
        """Runs the query and writes its results to the given arrays."""


class CpuEngine:
    """Runs the CPU loops, with a workspace that it reuses."""

    key = "cpu"

    def __init__(self) -> None:
        self._workspace = _native.MeshWorkspace()

    def tree(self, host: Any, like: Any | None) -> Any:
        """Returns `host`: the CPU loops search it directly."""
        return host

    def refitted(self, tree: Any, base: Any, vertices: torch.Tensor, most: float) -> tuple[Any, torch.Tensor] | None:
        """Returns None: the host does it."""
        return None

    def solid(self, tree: Any, sign: int, turned: bool) -> Any:
        """A tree in host memory as an obstacle without a pose."""
        return _native.mesh_solid(tree, sign, turned)

    def evaluate(self, world: Any, settings: Any, arrays: Arrays) -> StageTimes:
        """Runs the query and writes its results to the given arrays."""
        _native.mesh_evaluate(self._workspace, world, settings, **arrays)
        times = dict(zip(_native.MESH_STAGES, self._workspace.milliseconds, strict=True))
        return lambda: times


def cuda_key(native: Any, device: int) -> str:
    """The key of the engine for a CUDA device."""
    return f"{native.__name__}:{device}"


class CudaEngine:
    """Launches the CUDA kernels, on the stream that is current at the time of the call."""

    def __init__(self, native: Any, device: int, current_stream: Callable[[], int]) -> None:
        """Calls functions of `native`; `current_stream` returns the handle of the CUDA stream to use."""
        self._native = native
        self._current_stream = current_stream
        self.key = cuda_key(native, device)
        self.session = native.MeshCudaSession(device)

    def tree(self, host: Any, like: Any | None) -> Any:
        """Queues the construction of a hierarchy on the device, or the refit of `like`."""
        stream = self._current_stream()
        if like is None:
            return self._native.MeshCudaTree.build(self.session, stream, host)
        return like.moved(self.session, stream, host)

    def refitted(self, tree: Any, base: Any, vertices: torch.Tensor, most: float) -> tuple[Any, torch.Tensor] | None:
        """Refits a tree to vertices on the device, and waits for it; None if the host must do it."""
        if not base.is_one_solid:
            return None
        copy = vertices.detach().to(torch.float64, memory_format=torch.contiguous_format, copy=True)
        found = tree.refitted(self.session, self._current_stream(), base, copy.data_ptr(), most)
        return None if found is None else (found, copy)

    def solid(self, tree: Any, sign: int, turned: bool) -> Any:
        """A tree on the device as an obstacle without a pose."""
        return self._native.mesh_cuda_solid(tree, sign, turned)

    def evaluate(self, world: Any, settings: Any, arrays: Arrays) -> StageTimes:
        """Queues the query."""
        times = self._native.mesh_cuda_evaluate(self.session, self._current_stream(), world, settings, **arrays)
        return lambda: dict(times.milliseconds())


engine_for: PerDevice[Engine] = PerDevice(
    "spheres", CpuEngine, lambda index, current_stream: CudaEngine(_native, index, current_stream)
)
