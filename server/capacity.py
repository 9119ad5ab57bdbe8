"""How much of a device's memory a worker may use."""

from __future__ import annotations

import re
import resource
from pathlib import Path

import torch

from lumigrad.kernels.device import describe

_CONTROL_GROUPS = Path("/sys/fs/cgroup")


# Of what is free. The rest is for what no prediction counts: code of kernels that is loaded when it is first run, what
# two allocators on a GPU round up and keep, stacks of threads, and Python itself.
_USABLE = 0.9


def default_capacity(device: torch.device) -> int:
    """What a worker that was told nothing may use for calls and all that is stored."""
    return int(_USABLE * free_bytes(device))


def free_bytes(device: torch.device) -> int:
    """What is free now: of a GPU, or of what this process may have of the machine's memory."""
    if device.type != "cpu":
        return describe(device).memory_free_bytes
    # What the limits count is not what is resident: memory that was never touched is no less taken.
    limits = {resource.RLIMIT_AS: "VmSize", resource.RLIMIT_DATA: "VmData"}
    left = [resource.getrlimit(limit)[0] - _taken(field) for limit, field in limits.items() if _is_set(limit)]
    return max(0, min([_available(), *_control_group(), *left]))


def _taken(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return 0 if found is None else int(found[1]) * 1024


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
