"""Stands in for `CudaCopies`: a thread copies from the memory of the emulated device, as late as a test wants."""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from lumigrad.protos.dtypes import Array
from lumigrad.server.device.gpu_jpegs import GpuJpegs
from support.backends import emulation

# The environment variable that holds the path of a library that stands in for nvJPEG.
NVJPEG = "LUMIGRAD_TEST_NVJPEG"
# No thread of a test stands still for this time, in seconds.
_SECONDS = 100.0
# The bytes of a target before the copy, which nobody may rely on.
_UNDEFINED = 0xFF


class EmulatedEvent:
    """A point in the stream of copies."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.passed = threading.Event()

    def synchronize(self) -> None:
        if not self.passed.wait(_SECONDS):
            raise TimeoutError("the copies did not end")
        if self.error is not None:
            raise self.error


# Weak references to a tensor and an array, since CUDA keeps neither alive.
_Pair = tuple["weakref.ref[torch.Tensor]", "weakref.ref[Array]"]


class EmulatedCopies:
    """Copies in order on a thread, which reads sources only then. Checks that memory is pinned, as CUDA does."""

    def __init__(self, finish: Callable[[], None] = lambda: None) -> None:
        """`finish` waits for the kernels."""
        self.finish = finish
        # Copies wait while this is cleared.
        self.go = threading.Event()
        self.go.set()
        # Called before each download; what it raises is the device's error.
        self.before_copy: Callable[[], object] = lambda: None
        self.refuses = False
        # Downloads that have begun.
        self.begun = 0
        # The number of pinned bytes by address.
        self.pinned: dict[int, int] = {}
        # Errors that CUDA would raise, and copies that would be slow.
        self.mistakes: list[str] = []
        self._queue: queue.SimpleQueue[tuple[list[_Pair], EmulatedEvent]] = queue.SimpleQueue()
        threading.Thread(target=self._copy, name="copies", daemon=True).start()

    def record(self) -> EmulatedEvent:
        self.finish()
        event = EmulatedEvent()
        event.passed.set()
        return event

    def to_host(self, pairs: Iterable[tuple[torch.Tensor, Array]]) -> EmulatedEvent:
        self.finish()
        copies: list[_Pair] = []
        for source, target in pairs:
            target.reshape(-1).view(np.uint8)[:] = _UNDEFINED
            if target.nbytes and not self._is_pinned(target):
                self.mistakes.append(f"{target.nbytes} bytes are copied to memory that is not pinned")
            copies.append((weakref.ref(source), weakref.ref(target)))
        event = EmulatedEvent()
        self._queue.put((copies, event))
        return event

    def renderer(self) -> Any:
        return emulation.load("_emulation").cuda_renderer(0, 0, 0)

    def queries(self) -> Any:
        from lumigrad.kernels.meshes import cuda_queries

        return cuda_queries(emulation.load("_emulation"), 0, 0, 0)

    def passes(self) -> Any:
        from lumigrad.kernels.gaussians.prepared_passes import cuda_passes

        return cuda_passes(emulation.load("_emulation"), 0, 0, 0)

    def step_machine(self) -> Any:
        return emulation.load("_emulation").cuda_step_machine(0, 0)

    def jpegs(self) -> Any:
        path = os.environ.get(NVJPEG)
        return None if path is None else GpuJpegs(lambda: emulation.load("_emulation").JpegEncoder(path, 0))

    def fetch(self, tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        return [tensor.detach().clone() for tensor in tensors]

    def pin(self, memory: Array) -> bool:
        if self.refuses:
            return False
        address, nbytes = memory.ctypes.data, memory.nbytes
        if any(begin < address + nbytes and address < begin + size for begin, size in self.pinned.items()):
            self.mistakes.append("memory is pinned twice")
        self.pinned[address] = nbytes
        return True

    def unpin(self, address: int) -> None:
        if self.pinned.pop(address, None) is None:
            self.mistakes.append("memory is unpinned that is not pinned")

    def _is_pinned(self, target: Array) -> bool:
        address = target.ctypes.data
        return any(begin <= address and address + target.nbytes <= begin + size for begin, size in self.pinned.items())

    def _copy(self) -> None:
        while True:
            # A function of its own, so that no variable keeps memory alive while this waits for more.
            self._copy_all(*self._queue.get())

    def _copy_all(self, copies: list[_Pair], event: EmulatedEvent) -> None:
        self.begun += 1
        self.go.wait(_SECONDS)
        try:
            self.before_copy()
            for pair in copies:
                self._copy_one(*pair)
        except Exception as error:
            event.error = error
        event.passed.set()

    def _copy_one(self, source_ref: weakref.ref[torch.Tensor], target_ref: weakref.ref[Array]) -> None:
        source, target = source_ref(), target_ref()
        if source is None or target is None:
            self.mistakes.append("memory was freed before a copy that uses it had ended")
        elif target.nbytes and not self._is_pinned(target) and not self.refuses:
            self.mistakes.append("memory was unpinned before a copy that uses it had ended")
        else:
            torch.from_numpy(target).copy_(source)


def emulated_transfer(copies: EmulatedCopies, limit_bytes: int = 1 << 30) -> Any:
    """The transfers of a worker whose device is emulated."""
    from lumigrad.server.device.transfer import CudaTransfer

    return CudaTransfer(torch.device("cpu"), copies, limit_bytes)  # type: ignore[arg-type]
