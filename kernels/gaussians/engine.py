"""Which compiled engine serves a device, and what it keeps from call to call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from lumigrad.kernels import _native
from lumigrad.kernels.errors import ArgumentError
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


@dataclass
class _Local(threading.local):
    engines: dict[torch.device, Engine] = field(default_factory=dict)


_local = _Local()


def engine_for(device: torch.device) -> Engine:
    """This thread's engine for a device.

    Raises:
        ArgumentError: There is none for this kind of device, or none in this build.
    """
    engine = _local.engines.get(device)
    if engine is None:
        engine = _make(device)
        _local.engines[device] = engine
    return engine


def _make(device: torch.device) -> Engine:
    if device.type != "cpu":
        raise ArgumentError("means", "tensors on the CPU", f"tensors on {device}")
    return CpuEngine()
