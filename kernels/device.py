"""The devices on which the engines can run."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass

import torch

from lumigrad.kernels import _native

_MEMORY_TABLE = "/proc/meminfo"


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
        memory_free_bytes: The free memory of the device at the time of the call; of a CPU, the memory that the system
            can provide without swapping, including its file caches.
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
    return _native.CUDA_BUILT


def cuda_lack(index: int = 0) -> str:
    """The reason why a CUDA device cannot be used, and what to do; "" if it can.

    Checks the driver, the GPU, the kernels and torch in this order; the reason is the first check that fails.
    """
    if not cuda_built():
        lack = "this build has no CUDA kernels; build it where nvcc is installed"
        return f"{lack}, with `make setup` or pip (`make demo` builds none)"
    probe = _native.cuda_probe()
    return _driver_lack(probe) or _gpu_lack(probe, index)


def _driver_lack(probe: _native.CudaProbe) -> str:
    needed = f"CUDA {_version(probe.runtime)}"
    if probe.driver == 0:
        return f"there is no NVIDIA driver here; install one for {needed}, or pass the GPUs to the container"
    if probe.driver // 1000 < probe.runtime // 1000:
        newest = f"CUDA {_version(probe.driver)}"
        return f"the NVIDIA driver supports {newest}, and the kernels need {needed}; update the driver"
    return f"CUDA cannot list the GPUs: {probe.error}" if probe.error else ""


def _gpu_lack(probe: _native.CudaProbe, index: int) -> str:
    if index >= len(probe.gpus):
        return f"there are {len(probe.gpus)} CUDA devices"
    gpu = probe.gpus[index]
    if not _has_code(gpu.capability, _native.CUDA_ARCHITECTURES):
        has = ".".join(map(str, gpu.capability))
        return f"{gpu.name} has compute capability {has}; the kernels are compiled for {_native.CUDA_ARCHITECTURES}"
    if index >= torch.cuda.device_count():
        return f"torch {torch.__version__} does not find {gpu.name}; install a torch for CUDA {probe.driver // 1000}"
    return ""


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _has_code(capability: tuple[int, int], architectures: str) -> bool:
    """Whether a GPU can run one of the architectures, in CMake's notation: "80", "90-real", "120-virtual".

    Binary code runs on GPUs of the same major version; PTX is compiled for any newer one.
    """
    for name in architectures.split(","):
        number, _, kind = name.partition("-")
        built = divmod(int(number), 10)
        if built <= capability and (kind != "real" or built[0] == capability[0]):
            return True
    return False


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
        free, total = _available_bytes(), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
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


def _available_bytes() -> int:
    """The memory that the kernel reports as available without swapping; without such a report, the unused memory."""
    try:
        with open(_MEMORY_TABLE, encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
