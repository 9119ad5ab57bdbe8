"""The engines for the CPU and for CUDA, with the workspaces that they reuse between calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from lumigrad.kernels import _native
from lumigrad.kernels.buffers import empty
from lumigrad.kernels.levels import write_levels
from lumigrad.kernels.per_device import PerDevice
from lumigrad.kernels.stages import Stages, StageTimes
from lumigrad.kernels.steps import Steps

# Tensors by name; None for an absent one. "color_levels" receives colours as levels.
Arrays = Mapping[str, Any]
# The arrays that all views share; all other arrays begin with an axis for the views.
SCENE = ("positions", "colors", "radii", "opacities", "background")
# Gradients that are summed over the views.
SUMMED = (*(f"to_{name}" for name in SCENE), "touched")
# Stages of the forward pass, as on CUDA.
_FORWARD_STAGES = ("setup", "sort", "bin", "blend")


class Kept(Protocol):
    """State of a forward pass that an engine retains for `backward`, besides the images."""

    @property
    def bytes(self) -> int:
        """Memory in use."""


class Engine(Protocol):
    """Renders and differentiates the views of a call, in steps; used by one thread only."""

    def forward(
        self, cameras: Sequence[Any], settings: Any, arrays: Arrays, retain: bool
    ) -> Steps[tuple[Kept | None, Stages]]:
        """Renders the views into the given arrays; with `retain` returns the state for `backward`."""

    def backward(self, kept: Any, cameras: Sequence[Any], settings: Any, arrays: Arrays) -> Steps[Stages]:
        """Writes the gradients of the views to the given arrays; arrays in `SUMMED` are summed over the views."""


@dataclass(frozen=True)
class Prepared:
    """Contents of the workspace after the forward pass of each view; those of the last view are still in memory.

    Attributes:
        identities: Identities of the workspace's contents, by view.
        bytes: 0: no memory besides the workspace.
    """

    identities: tuple[int, ...]
    bytes: int = 0


class CpuEngine:
    """Runs the CPU loops, with a workspace that it reuses."""

    def __init__(self) -> None:
        self._workspace = _native.SphereWorkspace()

    def forward(
        self, cameras: Sequence[Any], settings: Any, arrays: Arrays, retain: bool
    ) -> Steps[tuple[Kept | None, Stages]]:
        """Renders the views into the given arrays; with `retain` returns the state for `backward`."""
        identities = []

        def run(camera: Any, mine: Arrays, view: int) -> StageTimes:
            _native.sphere_forward(self._workspace, camera, settings, **mine)
            identities.append(int(self._workspace.prepared))
            return self._times(_FORWARD_STAGES)

        stages = yield from _each_view(run, cameras, arrays)
        return Prepared(tuple(identities)) if retain else None, stages

    def backward(self, kept: Prepared, cameras: Sequence[Any], settings: Any, arrays: Arrays) -> Steps[Stages]:
        """Writes the gradients of the views to the given arrays; arrays in `SUMMED` are summed over the views."""

        def run(camera: Any, mine: Arrays, view: int) -> StageTimes:
            _native.sphere_backward(self._workspace, camera, settings, kept.identities[view], **mine)
            return self._times(_native.SPHERE_STAGES)

        return (yield from _each_view(run, cameras, arrays))

    def _times(self, names: Sequence[str]) -> StageTimes:
        times = dict(zip(names, self._workspace.milliseconds, strict=False))
        return lambda: times


def _each_view(run: Callable[[Any, Arrays, int], StageTimes], cameras: Sequence[Any], arrays: Arrays) -> Steps[Stages]:
    """Calls run(camera, its arrays, view) for all views, and sums the arrays in `SUMMED` over the views."""
    stages = Stages()
    part: dict[str, torch.Tensor] = {}
    for view, camera in enumerate(cameras):
        yield
        if view == 1:
            totals = {name: arrays[name] for name in SUMMED if arrays.get(name) is not None}
            part = {name: empty(total.shape, total.dtype, total.device) for name, total in totals.items()}
        shared = {name for name in arrays if name in SCENE or name in SUMMED}
        mine = {n: array if array is None or n in shared else array[view] for n, array in arrays.items()}
        stages.views.append(run(camera, {**mine, **part}, view))
        for name, addend in part.items():
            totals[name].add_(addend)
    return stages


class CudaEngine:
    """Launches the CUDA kernels, on the stream that is current at the time of the call."""

    def __init__(self, native: Any, device: int, current_stream: Callable[[], int]) -> None:
        """Calls functions of `native`; `current_stream` returns the handle of the CUDA stream to use."""
        self._native = native
        self._current_stream = current_stream
        self.session = native.SphereCudaSession(device)

    def forward(
        self, cameras: Sequence[Any], settings: Any, arrays: Arrays, retain: bool
    ) -> Steps[tuple[Kept | None, Stages]]:
        """Queues the rendering of the views; with `retain` returns the state for `backward`."""
        yield
        kept = self._native.SphereCudaPass()
        run = self._native.sphere_cuda_forward
        levels = arrays.get("color_levels")
        if levels is not None and "color" not in arrays:
            arrays = {**arrays, "color": empty(levels.shape, torch.float32, levels.device)}
        times = run(self.session, self._current_stream(), kept, cameras, settings, **arrays)
        if levels is not None:
            write_levels(arrays["color"], levels)
        return kept if retain else None, Stages([_stages_of(times)])

    def backward(self, kept: Any, cameras: Sequence[Any], settings: Any, arrays: Arrays) -> Steps[Stages]:
        """Queues the differentiation of the views."""
        yield
        run = self._native.sphere_cuda_backward
        return Stages([_stages_of(run(self.session, self._current_stream(), kept, cameras, settings, **arrays))])


def _stages_of(times: Any) -> StageTimes:
    return lambda: dict(times.milliseconds())


engine_for: PerDevice[Engine] = PerDevice(
    "positions", CpuEngine, lambda index, current_stream: CudaEngine(_native, index, current_stream)
)
