"""The engines for the CPU and for CUDA, with the workspaces that they reuse between calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from lumigrad.kernels import _native
from lumigrad.kernels.per_device import PerDevice
from lumigrad.kernels.stages import Stages, StageTimes
from lumigrad.kernels.steps import Steps

Arrays = Mapping[str, Any]  # Tensors by name; None for an absent one. "color_levels" receives colours as levels.


class Kept(Protocol):
    """The state of a forward pass that an engine retains for `backward`."""

    @property
    def bytes(self) -> int:
        """Memory in use."""


class Engine(Protocol):
    """Renders and differentiates the views of a call, in steps; used by one thread only.

    Attributes:
        gives_sh_factors: Whether `backward` writes "to_sh_factors".
    """

    gives_sh_factors: bool

    def forward(
        self, views: Any, settings: Any, arrays: Arrays, retain: bool, rows: tuple[int, int] | None
    ) -> Steps[tuple[Kept | None, Stages]]:
        """Renders the views into the given arrays; with `retain` returns the state for `backward`.

        Only the rows [rows[0], rows[1]) of the images are needed; None: all.
        """

    def backward(self, kept: Any, views: Any, settings: Any, arrays: Arrays, touched_only: bool) -> Steps[Stages]:
        """Writes the gradients of the views to the given arrays; with `touched_only` other rows may stay undefined."""


class CpuEngine:
    """Runs the CPU loops, with a workspace that it reuses."""

    gives_sh_factors = False

    def __init__(self) -> None:
        self._workspace = _native.GaussianWorkspace()
        self._scratch = _native.GaussianPass()

    def forward(
        self, views: Any, settings: Any, arrays: Arrays, retain: bool, rows: tuple[int, int] | None
    ) -> Steps[tuple[Kept | None, Stages]]:
        """Renders the tiles of the rows into the given arrays; with `retain` returns the state for `backward`."""
        # Other calls use the scratch pass between the views of this one.
        kept = _native.GaussianPass() if retain or len(views) > 1 else self._scratch
        kept.prepare(len(views), retain, *(rows or ()))
        stages = Stages()
        try:
            for view in range(len(views)):
                yield
                _native.gaussian_forward_view(self._workspace, kept, views, view, settings, **arrays)
                stages.views.append(self._times())
                if "ids" in arrays:
                    _native.gaussian_find_ids(self._workspace, kept, views, view, settings, **arrays)
                    stages.views.append(self._times())
                if "visited" in arrays:
                    _native.gaussian_find_visits(self._workspace, kept, views, view, settings, **arrays)
                    stages.views.append(self._times())
        finally:
            self._scratch.drop_lists()
        return kept if retain else None, stages

    def backward(self, kept: Any, views: Any, settings: Any, arrays: Arrays, touched_only: bool) -> Steps[Stages]:
        """Writes the gradients of the views to the given arrays; with `touched_only` other rows may stay undefined."""
        stages = Stages()
        try:
            for view in range(len(views)):
                yield
                _native.gaussian_blend_backward(self._workspace, kept, views, view, settings, **arrays)
                stages.views.append(self._times())
            _native.gaussian_project_backward(self._workspace, kept, views, settings, touched_only, **arrays)
        finally:
            self._workspace.drop_rows()
        stages.views.append(self._times())
        return stages

    def _times(self) -> StageTimes:
        times = zip(_native.GAUSSIAN_STAGES, self._workspace.milliseconds, strict=True)
        spent = {stage: time for stage, time in times if time > 0.0}
        return lambda: spent


class CudaEngine:
    """Launches the CUDA kernels for all views at once, on the stream that is current at the time of the call."""

    gives_sh_factors = True

    def __init__(self, native: Any, device: int, current_stream: Callable[[], int]) -> None:
        """Calls functions of `native`; `current_stream` returns the handle of the CUDA stream to use."""
        self._native = native
        self._current_stream = current_stream
        self.session = native.GaussianCudaSession(device)

    def forward(
        self, views: Any, settings: Any, arrays: Arrays, retain: bool, rows: tuple[int, int] | None
    ) -> Steps[tuple[Kept | None, Stages]]:
        """Queues the rendering of the views, of all rows; with `retain` returns the state for `backward`."""
        yield
        kept = self._native.GaussianCudaPass()
        runs = [self._native.gaussian_cuda_forward]
        if "ids" in arrays:
            runs.append(self._native.gaussian_cuda_find_ids)
        if "visited" in arrays:
            runs.append(self._native.gaussian_cuda_find_visits)
        times = [run(self.session, self._current_stream(), kept, views, settings, **arrays) for run in runs]
        return kept if retain else None, Stages([_stages_of(each) for each in times])

    def backward(self, kept: Any, views: Any, settings: Any, arrays: Arrays, touched_only: bool) -> Steps[Stages]:
        """Queues the differentiation of the views, of all rows."""
        yield
        run = self._native.gaussian_cuda_backward
        times = run(self.session, self._current_stream(), kept, views, settings, **arrays)
        return Stages([_stages_of(times)])


def _stages_of(times: Any) -> StageTimes:
    return lambda: dict(times.milliseconds())


engine_for: PerDevice[Engine] = PerDevice(
    "means", CpuEngine, lambda index, current_stream: CudaEngine(_native, index, current_stream)
)
