"""Copies between the host and a CUDA device, concurrent with kernels. Tests replace this class to run without a GPU."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import torch

from lumigrad.kernels import _native
from lumigrad.kernels.gaussians.prepared_passes import Passes, cuda_passes
from lumigrad.kernels.memory import pin, unpin
from lumigrad.kernels.meshes import Queries, cuda_queries
from lumigrad.protos.dtypes import Array
from lumigrad.server.core import logs
from lumigrad.server.device.gpu_jpegs import GpuJpegs, library_path

# Only builds with CUDA have the functions used here.
_cuda: Any = _native


class CudaCopies:
    """Makes copies from one device on their own stream, and pins memory on the host."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._has_warned = False

    def finish(self) -> None:
        """Wait for the kernels of the calling thread."""
        torch.cuda.current_stream(self._device).synchronize()

    def record(self) -> torch.cuda.Event:
        """Return an event at the end of the kernels that the calling thread has queued so far."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def to_host(self, pairs: Iterable[tuple[torch.Tensor, Array]]) -> torch.cuda.Event:
        """Copy each tensor to its array once the kernels queued so far have ended.

        Returns an event at the end of the copies; tensors and arrays must be kept until then.
        """
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        # Blocking, because the threads of many calls may wait for it, and should sleep rather than spin.
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        try:
            with torch.cuda.stream(self._stream):
                for source, target in pairs:
                    torch.from_numpy(target).copy_(source, non_blocking=True)
            event.record(self._stream)
        except BaseException:
            # The caller frees the memory after an error, so no copy may still be using it.
            with suppress(RuntimeError):
                self._stream.synchronize()
            raise
        return event

    def renderer(self) -> _native.Renderer:
        """Return the renderer of prepared renders, on the default stream, which the device's thread uses."""
        made: _native.Renderer = _cuda.cuda_renderer(*self._streams())
        return made

    def step_machine(self) -> _native.StepMachine:
        """Return the machine that makes the steps of one training without Python, on the stream of kernels."""
        index, kernels, _ = self._streams()
        made: _native.StepMachine = _cuda.cuda_step_machine(index, kernels)
        return made

    def queries(self) -> Queries:
        """Return the queries that are answered without Python, on the streams of `renderer`."""
        return cuda_queries(_cuda, *self._streams())

    def passes(self) -> Passes:
        """Return the prepared passes, on the streams of `renderer`."""
        return cuda_passes(_cuda, *self._streams())

    def _streams(self) -> tuple[int, int, int]:
        """Return the device's index, and the streams of kernels and of copies."""
        kernels = torch.cuda.default_stream(self._device).cuda_stream
        return self._device.index or 0, kernels, self._stream.cuda_stream

    def jpegs(self) -> GpuJpegs | None:
        """Return the encoder of JPEG files on the device; None if nvJPEG is not installed."""
        path = library_path(torch.version.cuda)
        return None if path is None else GpuJpegs(lambda: _cuda.JpegEncoder(str(path), self._device.index or 0))

    def fetch(self, tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Copy complete tensors to the host, without waiting for kernels and other copies."""
        with torch.cuda.stream(torch.cuda.Stream(self._device)):  # type: ignore[no-untyped-call]
            return [tensor.detach().contiguous().cpu() for tensor in tensors]

    def pin(self, memory: Array) -> bool:
        """Register a uint8 array that begins at a page boundary; returns False if CUDA refuses.

        Only the first refusal is logged.
        """
        error = pin(self._device, memory.ctypes.data, memory.nbytes)
        if error and not self._has_warned:
            self._has_warned = True
            what = "CUDA does not register host memory, so copies to and from it take longer"
            logs.event(what, logging.WARNING, bytes=memory.nbytes, error_name=error)
        return not error

    def unpin(self, address: int) -> None:
        """Undo `pin` for the memory at an address, after all copies that use it."""
        unpin(self._device, address)
