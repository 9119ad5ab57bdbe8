"""The limits on a worker's device memory, divided among scenes and trainings, and a tenant's share of each."""

from __future__ import annotations

import re
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from lumigrad.kernels.device import describe
from lumigrad.server.core.config import MIB, Config

_CONTROL_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")


class _Files(NamedTuple):
    """The names in a control group of one version."""

    folder: str
    most: str
    used: str
    prefix: str


# By the controllers that a line of _OWN_GROUPS names: version 2 names none.
_VERSIONS = {
    "": _Files("", "memory.max", "memory.current", ""),
    "memory": _Files("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
}


# The usable fraction of the free memory. The rest is for memory that predictions do not count: the code of kernels,
# rounding and caches of two allocators on a GPU, stacks of threads, and Python.
_USABLE = 0.9


@dataclass(frozen=True)
class StoreLimits:
    """Limits on the memory of scenes and trainings, in total and per tenant.

    Attributes:
        is_cut: Whether the limits are below the options, because the memory is too small.
    """

    scene_bytes: int
    tenant_scene_bytes: int
    training_bytes: int
    tenant_training_bytes: int
    is_cut: bool

    @property
    def cause(self) -> str:
        """A suffix for an option's name in error texts: the other option that determines the limit."""
        return ", --device-memory-mib" if self.is_cut else ""


def store_limits(config: Config, capacity_bytes: int) -> StoreLimits:
    """Return the limits that the options set; with tenants, at most half of the memory.

    Scenes and trainings stay until their owner deletes them or they expire, so together they must leave memory for the
    calls of other tenants. The larger limit is reduced first.
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
    """Return the default of --device-memory-mib, in bytes."""
    return int(_USABLE * free_bytes(device))


def free_bytes(device: torch.device) -> int:
    """Return the free memory of a GPU, or the memory that this process can still allocate on the host."""
    free = describe(device).memory_free_bytes
    if device.type != "cpu":
        return free
    # Both limits count virtual memory, whether it is resident or not.
    limits = {resource.RLIMIT_AS: "VmSize", resource.RLIMIT_DATA: "VmData"}
    most = {field: resource.getrlimit(limit)[0] for limit, field in limits.items()}
    left = [limit - _taken(field) for field, limit in most.items() if limit != resource.RLIM_INFINITY]
    return max(0, min([free, *_control_group(), *left]))


def _taken(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return 0 if found is None else int(found[1]) * 1024


def _control_group() -> list[int]:
    """Return the memory left in each control group of this process, as in containers; empty without limits."""
    try:
        lines = _OWN_GROUPS.read_text().splitlines()
    except OSError:
        return []
    left = []
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if (files := _VERSIONS.get(controllers)) is not None:
            folder = _CONTROL_GROUPS / files.folder / path.lstrip("/")
            left += [found for each in (folder, *folder.parents) for found in _left(each, files)]
    return left


def _left(folder: Path, files: _Files) -> list[int]:
    """Return the memory left in a control group, if it is limited.

    Cached files count as used there, as those of the spool do, but the system drops them for whatever needs memory.
    """
    try:
        most, used, parts = ((folder / name).read_text() for name in (files.most, files.used, "memory.stat"))
    except OSError:
        return []
    if most.strip() == "max":
        return []
    cached = re.findall(rf"^{files.prefix}(?:in)?active_file (\d+)$", parts, re.MULTILINE)
    return [int(most) - int(used) + sum(map(int, cached))]
