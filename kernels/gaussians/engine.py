"""Which compiled engine serves a device, and what it keeps from call to call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from lumigrad.kernels import _native
from lumigrad.kernels.per_device import PerDevice
from lumigrad.kernels.stages import Stages, StageTimes

Arrays = Mapping[str, Any]  # Tensors by name, or None where there is none.
BeforeView = Callable[[], object]


class Kept(Protocol):
    """What an engine keeps of a forward pass."""

    @property
    def bytes(self) -> int:
        """Memory it holds."""


class Engine(Protocol):
    """Renders and differentiates the views of a call; belongs to one thread."""

    def forward(
        self, views: Any, settings: Any, arrays: Arrays, retain: bool, before_view: BeforeView
    ) -> tuple[Kept | None, Stages]:
        """Renders the views into the given arrays; with `retain` keeps what `backward` needs."""

    def backward(self, kept: Any, views: Any, settings: Any, arrays: Arrays, before_view: BeforeView) -> Stages:
        """Differentiates the views into the given arrays."""


class CpuEngine:
    """The loops for the CPU, and their workspace."""

    def __init__(self) -> None:
        self._workspace = _native.GaussianWorkspace()
        self._scratch = _native.GaussianPass()

    def forward(
        self, views: Any, settings: Any, arrays: Arrays, retain: bool, before_view: BeforeView
    ) -> tuple[Kept | None, Stages]:
        """Renders the views into the given arrays; with `retain` keeps what `backward` needs."""
        kept = _native.GaussianPass() if retain else self._scratch
        kept.prepare(len(views), retain)
        stages = Stages()
        for view in range(len(views)):
            before_view()
            _native.gaussian_forward_view(self._workspace, kept, views, view, settings, **arrays)
            stages.views.append(self._times())
        return kept if retain else None, stages

    def backward(self, kept: Any, views: Any, settings: Any, arrays: Arrays, before_view: BeforeView) -> Stages:
        """Differentiates the views into the given arrays."""
        stages = Stages()
        for view in range(len(views)):
            before_view()
            _native.gaussian_blend_backward(self._workspace, kept, views, view, settings, **arrays)
            stages.views.append(self._times())
        _native.gaussian_project_backward(self._workspace, kept, views, settings, **arrays)
        stages.views.append(self._times())
        return stages

    def _times(self) -> StageTimes:
        times = zip(_native.GAUSSIAN_STAGES, self._workspace.milliseconds, strict=True)
        spent = {stage: time for stage, time in times if time > 0.0}
        return lambda: spent


class CudaEngine:
    """The kernels for a CUDA device; they run on the stream that is current when they are called, all views at once."""

    def __init__(self, native: Any, device: int, current_stream: Callable[[], int]) -> None:
        """Uses the functions of `native`; `current_stream` gives the handle of the stream."""
        self._native = native
        self._current_stream = current_stream
        self.session = native.GaussianCudaSession(device)

    def forward(
        self, views: Any, settings: Any, arrays: Arrays, retain: bool, before_view: BeforeView
    ) -> tuple[Kept | None, Stages]:
        """Queues the rendering of the views; with `retain` keeps what `backward` needs."""
        before_view()
        kept = self._native.GaussianCudaPass()
        run = self._native.gaussian_cuda_forward
        times = run(self.session, self._current_stream(), kept, views, settings, **arrays)
        return kept if retain else None, _stages_of(times)

    def backward(self, kept: Any, views: Any, settings: Any, arrays: Arrays, before_view: BeforeView) -> Stages:
        """Queues the differentiation of the views."""
        before_view()
        run = self._native.gaussian_cuda_backward
        return _stages_of(run(self.session, self._current_stream(), kept, views, settings, **arrays))


def _stages_of(times: Any) -> Stages:
    return Stages([lambda: dict(times.milliseconds())])


engine_for: PerDevice[Engine] = PerDevice(
    "means", CpuEngine, lambda index, current_stream: CudaEngine(_native, index, current_stream)
)
