"""Engines with their workspaces, one per thread and device, created on first use."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

from lumigrad.kernels import _native
from lumigrad.kernels.errors import ArgumentError

E = TypeVar("E")
CurrentStream = Callable[[], int]  # Returns the handle of the CUDA stream on which work is queued.
# Pixels and primitives of the views in one launch on a GPU, if its caller may stop between launches. Five views of
# 1920x1080 and a million Gaussians still fill a large GPU, and should take a small one some 50 ms.
_LAUNCH_WORK = 1 << 24


def launches(views: int, view_work: int, *, is_cuda: bool, is_whole: bool) -> list[slice]:
    """Returns the views of each engine call: all if `is_whole`, else a few, so that a caller can stop in between.

    Args:
        views: The number of views.
        view_work: The pixels and primitives of a view.
        is_cuda: Whether the engine runs on a GPU; on the CPU it gains nothing from several views.
        is_whole: Whether one call must render all views.
    """
    each = views if is_whole else max(1, _LAUNCH_WORK // view_work) if is_cuda else 1
    return [slice(begin, begin + each) for begin in range(0, views, each)]


class _OfThread(threading.local):
    """The engines of the calling thread: for each kind of engine a dictionary by device."""

    def __init__(self) -> None:
        self.engines: list[dict[torch.device, Any]] = []


_of_thread = _OfThread()


def drop_engines(device: torch.device) -> None:
    """Drops the calling thread's engines for a device, with their workspaces; the next calls create new ones."""
    for engines in _of_thread.engines:
        engines.pop(device, None)


class PerDevice(threading.local, Generic[E]):
    """The calling thread's engines of one kind, by device. Threads share no engines, since they share no workspaces."""

    def __init__(self, argument: str, cpu: Callable[[], E], cuda: Callable[[int, CurrentStream], E]) -> None:
        """Creates engines with `cpu()` and `cuda(device index, current stream)`; errors name `argument`."""
        self._argument = argument
        self._cpu = cpu
        self._cuda = cuda
        self._engines: dict[torch.device, E] = {}
        _of_thread.engines.append(self._engines)

    def __call__(self, device: torch.device) -> E:
        """The calling thread's engine for a device.

        Raises:
            ArgumentError: No engine exists for this kind of device, or this build lacks it.
        """
        engine = self._engines.get(device)
        if engine is None:
            engine = self._make(device)
            self._engines[device] = engine
        return engine

    def _make(self, device: torch.device) -> E:
        if device.type == "cpu":
            return self._cpu()
        if device.type != "cuda":
            raise ArgumentError(self._argument, "tensors on the CPU or a CUDA device", f"tensors on {device}")
        if not _native.CUDA_BUILT:
            expected = "tensors on the CPU: this build has no CUDA kernels; for a GPU build it where nvcc is installed"
            raise ArgumentError(self._argument, expected, f"tensors on {device}")
        return self._cuda(device.index or 0, lambda: torch.cuda.current_stream(device).cuda_stream)
