"""Gives a worker the emulation of CUDA as its device: kernels, copies on a thread of their own, and pinned memory.

Imported into the process of a worker on the CPU.

Besides the faults of engines, these can be armed in the folder of LUMIGRAD_TEST_FAULTS: "hold copies" and "refuse to
pin", which last, and "copy", which loses the device during a copy.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from pathlib import Path
from typing import Any

from lumigrad.kernels import density, gaussians, meshes, per_device, spheres, training
from lumigrad.kernels.per_device import PerDevice
from lumigrad.protos.dtypes import Array
from lumigrad.server.device.transfer import Transfer
from lumigrad.server.engines.prepared import PreparedKinds
from lumigrad.server.process import worker
from support.backends import emulation
from support.backends.emulated_copies import EmulatedCopies, emulated_transfer
from support.workers.faults import Faults
from support.workers.forks import FAULTS

LOST = "CUDA error: an illegal memory access was encountered"


class _Mistakes(list[str]):
    """A list of mistakes that are written to the log, where tests look for them."""

    def append(self, mistake: str) -> None:
        sys.stderr.write(f"mistake: {mistake}\n")


class _FaultyCopies(EmulatedCopies):
    """Copies that meet the armed faults."""

    def __init__(self, native: Any, faults: Faults) -> None:
        super().__init__(native.synchronize)
        self._native = native
        self._faults = faults
        self.mistakes = _Mistakes()
        self.before_copy = self._strike

    def pin(self, memory: Array) -> bool:
        self.refuses = self._faults.is_armed("refuse to pin")
        return super().pin(memory)

    def _strike(self) -> None:
        while self._faults.is_armed("hold copies"):
            time.sleep(0.01)
        if self._faults.strike("copy"):
            raise RuntimeError(LOST)


def _use_emulation(native: Any) -> None:
    """Have the engines of all threads run the emulated kernels."""
    for package in (density, gaussians, meshes, spheres, training):
        names = [name for name in sys.modules if name.startswith(f"{package.__name__}.")]
        users = [sys.modules[name] for name in names if hasattr(sys.modules[name], "engine_for")]
        if len(users) < 2:
            raise RuntimeError(f"no module of {package.__name__} uses an engine")
        engine = sys.modules[f"{package.__name__}.engine"].CudaEngine
        engines: Any = PerDevice("device", lambda engine=engine: engine(native, 0, lambda: 0), lambda *_: None)
        for module in users:
            module.engine_for = engines
    # Small launches, so that a call of a few small views has several.
    per_device._LAUNCH_WORK = 10_000


def transfer_for(_: object, pinned_limit_bytes: int) -> Transfer:
    transfer: Transfer = emulated_transfer(copies, pinned_limit_bytes)
    return transfer


native = emulation.load("_emulation")
copies = _FaultyCopies(native, Faults(Path(os.environ.get(FAULTS, "/nonexistent"))))
_use_emulation(native)
worker.transfer_for = transfer_for
if FAULTS in os.environ:
    # Faults are injected into the kernels' Python, which prepared renders would bypass.
    PreparedKinds.add = lambda *_: None  # type: ignore[method-assign]
    importlib.import_module("support.workers.faulty_engines")
