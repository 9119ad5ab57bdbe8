"""The worker's process, which logs for each call the source files of the server that ran for it."""

from __future__ import annotations

import argparse
import json
import sys
import threading
from pathlib import Path
from types import FrameType

import lumigrad.server
from lumigrad.server.core.config import Config
from lumigrad.server.process.main import run
from lumigrad.server.rpc.server import _do, _write_down

SERVER = f"{Path(lumigrad.server.__file__).parent}/"
# Threads that look after the worker while it serves, at times of their own.
BACKGROUND = {"watchdog", "housekeeping", "metrics"}


class Walk:
    """The files in the order in which a call comes to them, from its receipt until it is answered."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[str, None] = {}
        self._state = threading.local()

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        """Note what runs, in whichever thread."""
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(SERVER):
            return
        if code is _write_down.__code__:
            # The call has been answered by then.
            self._state.is_answered = event == "call"
        elif event == "return" and code is _do.__code__:
            self._end()
        elif event == "call" and code.co_name != "<module>" and not self._is_elsewhere():
            with self._lock:
                self._files.setdefault(code.co_filename.removeprefix(SERVER))

    def _is_elsewhere(self) -> bool:
        """Whether this thread is at something else than a call."""
        return threading.current_thread().name in BACKGROUND or getattr(self._state, "is_answered", False)

    def _end(self) -> None:
        with self._lock:
            files, self._files = list(self._files), {}
        sys.stderr.write(f"walk {json.dumps(files)}\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    Config.add_arguments(parser)
    config = Config.from_arguments(parser.parse_args())
    threading.setprofile(Walk().profile)
    sys.exit(run(config.of_worker(0)))
