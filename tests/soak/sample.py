"""Resources of processes at rest: memory, descriptors, threads, shared memory, files."""

from __future__ import annotations

import ctypes
import gc
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

MIB = 1 << 20
_LIBC = ctypes.CDLL(None)
# The value of glibc's M_ARENA_MAX.
_ARENA_MAX = -8
# The device and inode of a mapping in /proc/PID/maps, and its path.
_MAPPING = re.compile(r"^\S+ \S+ \S+ (\S+ \d+) +(\S.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Sample:
    """Resources of one process; memory in MiB."""

    pid: int
    rss_mib: float  # Resident memory, shared memory included.
    descriptors: int
    threads: int
    memfds: int  # Regions of anonymous shared memory that it maps or has open.
    shm: int  # Entries of /dev/shm that it maps or has open.


def hold_little() -> None:
    """Has glibc keep all threads' free memory of this process in one arena; call it before it has other threads.

    Each thread's own arena would reach its full size only after hours, and look like growth until then.
    """
    if hasattr(_LIBC, "mallopt"):
        _LIBC.mallopt(_ARENA_MAX, 1)


def sample(pid: int) -> Sample:
    """Measures a process; this process first collects its garbage and releases free memory."""
    if pid == os.getpid():
        gc.collect()
        if hasattr(_LIBC, "malloc_trim"):
            _LIBC.malloc_trim(0)
    process = psutil.Process(pid)
    mappings = set(_MAPPING.findall(Path(f"/proc/{pid}/maps").read_text()))
    paths = [path for _, path in mappings]
    links = _links(pid)
    return Sample(
        pid=pid,
        rss_mib=process.memory_info().rss / MIB,
        descriptors=len(links),
        threads=process.num_threads(),
        memfds=_count(paths, "/memfd:") + _count(links, "/memfd:"),
        shm=_count(paths, "/dev/shm/") + _count(links, "/dev/shm/"),
    )


def spooled(folder: Path) -> tuple[int, float]:
    """The number of files in a folder, and their MiB."""
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return len(sizes), sum(sizes) / MIB


def _links(pid: int) -> list[str]:
    """The targets of a process's descriptors."""
    folder, found = f"/proc/{pid}/fd", []
    for name in os.listdir(folder):
        try:
            found.append(os.readlink(f"{folder}/{name}"))
        except FileNotFoundError:
            # The descriptor with which the folder itself was read.
            continue
    return found


def _count(paths: Sequence[str], start: str) -> int:
    return sum(path.startswith(start) for path in paths)
