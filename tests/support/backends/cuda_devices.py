"""A CUDA device, or the emulated one, for tests of features of CUDA devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch

from lumigrad.kernels import _native
from support.backends import emulation


@dataclass(frozen=True)
class CudaDevice:
    """The native module, the device of its tensors, and the handle of the current stream."""

    name: str
    native: ModuleType
    device: torch.device
    current_stream: Callable[[], int]


@dataclass(frozen=True)
class Device:
    """A CUDA device with a fresh engine: the kernels' own, and the one of the tests, which calls it."""

    native: ModuleType
    cuda: Any
    engine: Any


def emulated() -> CudaDevice:
    """The emulated device; the test is skipped where it was not built."""
    return CudaDevice("emulation", emulation.load("_emulation"), torch.device("cpu"), lambda: 0)


def gpu() -> CudaDevice:
    """The first GPU; the test is skipped where there is none."""
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    return CudaDevice("gpu", _native, torch.device("cuda", 0), lambda: torch.cuda.current_stream().cuda_stream)
