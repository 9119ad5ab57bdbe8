"""Disks that a test holds, so that writes of a process never become durable, or that are full."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.preloading import environment_with


@contextmanager
def full_disk(limit: int) -> Iterator[None]:
    """Files of this process may not grow beyond `limit` bytes for the length of a `with` block."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class HeldDisk:
    """Held inside `hold` and `hold_reads`; applies to processes that are started with `environment`."""

    def __init__(self, folder: Path) -> None:
        """Builds the preloaded library in `folder`."""
        self._file = folder / "held"
        source = Path(__file__).with_name("disk.c")
        self._reads = folder / "held_reads"
        self.environment = environment_with(source, folder, DISK_HELD=str(self._file), READS_HELD=str(self._reads))

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Let no fsync return for the length of a `with` block."""
        self._file.touch()
        try:
            yield
        finally:
            self._file.unlink()

    @contextmanager
    def hold_reads(self) -> Iterator[Path]:
        """Let no PLY file be opened, and no part of a file be read, for the length of a `with` block.

        The yielded path exists once either was attempted.
        """
        begun = self._reads.with_name("held_reads.begun")
        begun.unlink(missing_ok=True)
        self._reads.touch()
        try:
            yield begun
        finally:
            self._reads.unlink()
