"""Fault injection: each fault is armed by a file, and occurs in a wrapper of the real engine."""

from __future__ import annotations

import ctypes
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from lumigrad.kernels.steps import Steps, complete
from support.workers.worker import WorkerProcess

# While "poison" is armed, every request for this output crashes the worker.
POISON = "hits"
_LONG_SECONDS = 240


class Faults:
    """The armed faults; each occurs once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def arm(self, name: str) -> None:
        """Make the fault occur at the next opportunity."""
        (self._folder / name).touch()

    def disarm(self, name: str) -> None:
        """Stop a fault that occurs repeatedly."""
        (self._folder / name).unlink()

    def strike(self, name: str) -> bool:
        """Whether a fault is armed; disarms it."""
        try:
            (self._folder / name).unlink()
        except FileNotFoundError:
            return False
        return True

    def is_armed(self, name: str) -> bool:
        """Whether a fault is armed; leaves it armed, for faults that occur repeatedly."""
        return (self._folder / name).exists()

    @property
    def are_armed(self) -> bool:
        """Whether any fault is armed."""
        return any(path.is_file() for path in self._folder.iterdir())


class FaultyEngine:
    """A render engine whose forward pass fails with the armed faults."""

    def __init__(self, engine: Any, faults: Faults) -> None:
        self._engine = engine
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def forward(self, *arguments: Any, before_view: Callable[[], object], **settings: Any) -> Any:
        return complete(self.forward_steps(*arguments, **settings), before_view)

    def forward_steps(self, *arguments: Any, **settings: Any) -> Steps[Any]:
        faults = self._faults
        if faults.strike("crash") or (faults.is_armed("poison") and POISON in arguments[2]):
            # A signal to the process could reach another thread while this one answers.
            signal.pthread_kill(threading.get_ident(), signal.SIGSEGV)
        if faults.strike("sticky"):
            while faults.is_armed("not yet"):
                time.sleep(0.01)
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if faults.strike("assert"):
            # A real failed assertion, which needs a GPU.
            torch.zeros(1, device="cuda")[torch.tensor([1], device="cuda")].item()
        if faults.strike("error"):
            raise RuntimeError("something passes")
        if faults.strike("shortage") or faults.is_armed("shortages"):
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        if faults.strike("host shortage"):
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory")
        if faults.strike("hang"):
            time.sleep(_LONG_SECONDS)
        if faults.strike("hold"):
            # A PyDLL keeps Python's lock, so no other thread of the process runs meanwhile.
            ctypes.PyDLL(None).sleep(_LONG_SECONDS)
        return (yield from self._engine.forward_steps(*arguments, **settings))


@contextmanager
def faulty_worker(folder: Path, *options: str, before: Sequence[str] = ()) -> Iterator[tuple[WorkerProcess, Faults]]:
    """A worker under a supervisor that meets the faults armed in `folder`; `before` changes it before it serves."""
    options = ("--device", "cpu", "--lame-duck-seconds", "0", *options)
    process = WorkerProcess(*options, supervised=True, faults=folder, before=before)
    try:
        yield process, Faults(folder)
    finally:
        process.stop()
