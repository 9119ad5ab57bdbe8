"""How much of a device's memory a worker may use."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import torch

from lumigrad.kernels.device import describe

_CONTROL_GROUPS = Path("/sys/fs/cgroup")


def free_bytes(device: torch.device) -> int:
    """What is free now: of a GPU, or of what this process may have of the machine's memory."""
    if device.type != "cpu":
        return describe(device).memory_free_bytes
    page = os.sysconf("SC_PAGE_SIZE")
    mapped, resident = (int(pages) * page for pages in Path("/proc/self/statm").read_text().split()[:2])
    limits = {resource.RLIMIT_AS: mapped, resource.RLIMIT_DATA: resident}
    left = [resource.getrlimit(limit)[0] - used for limit, used in limits.items() if _is_set(limit)]
    return max(0, min([_available(), *_control_group(), *left]))


def _is_set(limit: int) -> bool:
    return resource.getrlimit(limit)[0] != resource.RLIM_INFINITY


def _available() -> int:
    """What the machine has for new work, without what it could only have by swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return describe(torch.device("cpu")).memory_free_bytes


def _control_group() -> list[int]:
    """What is left in each of the groups that this process is in, as in containers; empty: nobody has limited it."""
    try:
        path = Path("/proc/self/cgroup").read_text().strip().rpartition("::")[2].lstrip("/")
    except OSError:
        return []
    left = []
    for folder in (_CONTROL_GROUPS / path, *(_CONTROL_GROUPS / path).parents):
        try:
            most, used = ((folder / name).read_text().strip() for name in ("memory.max", "memory.current"))
        except OSError:
            continue
        if most != "max":
            left.append(int(most) - int(used))
    return left
