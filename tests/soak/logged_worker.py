"""A worker whose log goes to a file, so that it does not count as growth of the process that started it."""

from __future__ import annotations

import shlex
from pathlib import Path

from support.workers.worker import LUMIGRAD, WorkerProcess


class LoggedWorker(WorkerProcess):
    """A WorkerProcess with its log in a file; to be used as a context."""

    def __init__(self, log: Path, *options: str) -> None:
        log.write_text("")
        self._file = log
        command = ("sh", "-c", f'exec "$0" serve "$@" 2>> {shlex.quote(str(log))}', LUMIGRAD)
        super().__init__("--device", "cpu", *options, supervised=True, command=command)

    def __enter__(self) -> LoggedWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def log(self) -> str:
        """Standard error of all processes so far."""
        return self._file.read_text(errors="replace")
