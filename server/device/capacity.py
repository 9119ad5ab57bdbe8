"""How much of a device's memory a worker may use."""

from __future__ import annotations

import re
import resource
from dataclasses import dataclass
from pathlib import Path

import torch

from lumigrad.kernels.device import describe
from lumigrad.server.core.config import MIB, Config

_CONTROL_GROUPS = Path("/sys/fs/cgroup")


# Of what is free. The rest is for what no prediction counts: code of kernels that is loaded when it is first run, what
# two allocators on a GPU round up and keep, stacks of threads, and Python itself.
_USABLE = 0.9


@dataclass(frozen=True)
class StoreLimits:
    """What scenes and trainings may take of a worker's memory: all of them, and those of one tenant.

    Attributes:
        is_cut: Whether the memory is too small for what the options allow.
    """

    scene_bytes: int
    tenant_scene_bytes: int
    training_bytes: int
    tenant_training_bytes: int
    is_cut: bool

    @property
    def cause(self) -> str:
        """What stands after an option's name in error texts: the other option that has set the limit."""
        return ", --device-memory-mib" if self.is_cut else ""


def store_limits(config: Config, capacity_bytes: int) -> StoreLimits:
    """The limits that the options name; where callers are told apart, at most half of the memory.

    Scenes and trainings stay until their owner, or time, lets go of them, so all of them together must leave room for
    the calls of others. The smaller of the two is cut last.
    """
    scenes, trainings = config.scene_mib * MIB, config.training_mib * MIB
    room = capacity_bytes // 2 if config.has_tenants else scenes + trainings
    scene_bytes = min(scenes, max(room // 2, room - trainings))
    training_bytes = min(trainings, max(0, room - scene_bytes))
    share = config.share_of(config.training_mib, config.tenant_training_mib)
    return StoreLimits(
        scene_bytes,
        min(scene_bytes, (config.tenant_scene_mib or config.scene_mib) * MIB),
        training_bytes,
        share * training_bytes // config.training_mib,
        (scene_bytes, training_bytes) != (scenes, trainings),
    )


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
