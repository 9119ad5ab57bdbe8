"""The devices that `--device` names, found without torch, which the supervisor is too light for."""

from __future__ import annotations

import ctypes

from lumigrad.server.config import ConfigError


def each(device: str) -> list[str]:
    """One name per worker; "all" are the CUDA devices, or the CPU if there is none."""
    names = [name.strip() for name in device.split(",")]
    if names == ["all"]:
        return [f"cuda:{index}" for index in range(_cuda_count())] or ["cpu"]
    if "all" in names or "" in names:
        raise ConfigError(f"--device: expected one device, several with commas between, or all, got {device!r}")
    gpus = ["cuda:0" if name == "cuda" else name for name in names if name != "cpu"]
    for name in gpus:
        if gpus.count(name) > 1:
            raise ConfigError(f"--device: expected each GPU once, as each worker takes a whole one, got {name} twice")
    return names


def _cuda_count() -> int:
    """What the driver sees, by CUDA_VISIBLE_DEVICES; 0 without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value
