"""A worker process that logs, for each call, the source files and the number of functions that were executed for it."""

from __future__ import annotations

import gc
import json
import sys
import threading
from pathlib import Path
from types import FrameType

import lumigrad.server
from lumigrad.server.rpc.server import Task

SERVER = f"{Path(lumigrad.server.__file__).parent}/"
# Threads that do periodic work, independent of calls.
BACKGROUND = {"watchdog", "housekeeping", "metrics", "notes"}


class FileTrace:
    """The files in the order in which a call first executes them, from its receipt to its reply, and its functions."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[str, None] = {}
        self._functions = 0

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        """Record the file of a called function; the profile function of all threads."""
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(SERVER):
            return
        if event == "return" and code is Task.run.__code__:
            self._end()
        elif event == "call" and code.co_name != "<module>" and threading.current_thread().name not in BACKGROUND:
            with self._lock:
                self._files.setdefault(code.co_filename.removeprefix(SERVER))
                self._functions += 1

    def _end(self) -> None:
        with self._lock:
            files, self._files = list(self._files), {}
            functions, self._functions = self._functions, 0
        sys.stderr.write(f"functions {functions}\nfiles {json.dumps(files)}\n")


def begin() -> None:
    """Trace the threads that this process starts, without collections of garbage, whose finalizers would count."""
    gc.disable()
    threading.setprofile(FileTrace().profile)
