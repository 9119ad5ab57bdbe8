"""The devices on which the engines can run."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass

import torch

from lumigrad.kernels import _native

# The lowest of LUMIGRAD_CUDA_ARCHITECTURES in cmake/kernels.cmake. Newer GPUs run its binary code or compile its PTX.
_LEAST_CAPABILITY = (8, 0)


@dataclass(frozen=True)
class DeviceInfo:
    """A device, and how the extension was built.

    Attributes:
        name: "cpu" or "cuda:N".
        device_name: The product, e.g. "AMD EPYC" or "NVIDIA H200".
        instruction_set: The instruction set of the CPU loops in use: "avx512", "avx2" or "portable".
        cuda_built: Whether the extension contains CUDA kernels.
        threads: The number of threads that the CPU loops use.
        memory_bytes: The total memory of the device.
        memory_free_bytes: The free memory of the device at the time of the call.
    """

    name: str
    device_name: str
    instruction_set: str
    cuda_built: bool
    threads: int
    memory_bytes: int
    memory_free_bytes: int


def cuda_built() -> bool:
    """Whether the extension was built with nvcc."""
    return bool(getattr(_native, "CUDA_BUILT", False))


def cuda_lack(index: int = 0) -> str:
    """The reason why a CUDA device cannot be used; "" if it can."""
    if not cuda_built():
        return "this build has no CUDA kernels; install with nvcc present"
    if not torch.cuda.is_available():
        return f"torch finds no CUDA device (torch {torch.__version__})"
    if index >= torch.cuda.device_count():
        return f"there are {torch.cuda.device_count()} CUDA devices"
    capability, least = torch.cuda.get_device_capability(index), _LEAST_CAPABILITY
    if capability < least:
        product = torch.cuda.get_device_name(index)
        has, needs = (".".join(map(str, pair)) for pair in (capability, least))
        return f"{product} has compute capability {has}, and the kernels need {needs} or more"
    return ""


def resolve(name: str) -> torch.device:
    """Turns "auto", "cpu" or "cuda:N" into a device.

    "auto" is the first CUDA device if this build, torch, the driver and the device support it, otherwise the CPU.

    Raises:
        ValueError: The name is unknown or the device cannot be used; the message gives the reason.
    """
    if name == "auto":
        return torch.device("cpu" if cuda_lack() else "cuda:0")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise ValueError(f"device: expected 'auto', 'cpu' or 'cuda:N', got {name!r}")
    index = device.index or 0
    lack = cuda_lack(index)
    if lack:
        raise ValueError(f"device {name!r}: {lack}; use 'cpu'")
    return torch.device("cuda", index)


def describe(device: torch.device) -> DeviceInfo:
    """The properties of a device."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        product = torch.cuda.get_device_name(device)
    else:
        page = os.sysconf("SC_PAGE_SIZE")
        free, total = os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page
        product = _processor()
    return DeviceInfo(
        name=str(device),
        device_name=product,
        instruction_set=_native.current_isa(),
        cuda_built=cuda_built(),
        threads=_native.thread_count(),
        memory_bytes=total,
        memory_free_bytes=free,
    )


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
