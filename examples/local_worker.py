"""A worker for an example: the one that LUMIGRAD_TARGET names, or one of its own on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

# Signals that by default end a program at once, which would leave its worker behind; SIGHUP comes with the end of a
# terminal.
_ENDS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def worker(log_path: Path) -> Iterator[str]:
    """Yields the address of a worker; a worker that is started here listens on a free port until the block ends.

    Args:
        log_path: where a worker that is started here writes its log.
    """
    named = os.environ.get("LUMIGRAD_TARGET")
    if named:
        yield named
        return
    for number in _ENDS:
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _stop)
    command = [str(Path(sys.executable).with_name("lumigrad")), "serve", "--port", "0", "--metrics-port", "0"]
    # A session of its own: Ctrl-C reaches this program alone, which then ends the worker.
    with (
        log_path.open("w") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True) as process,
    ):
        try:
            assert process.stdout is not None
            # "listening on HOST:PORT (metrics PORT)"
            line = process.stdout.readline()
            if not line.startswith("listening on "):
                raise SystemExit(f"the worker did not start; see {log_path}")
            yield line.split()[2]
        finally:
            process.terminate()
            # Popen does not wait after Ctrl-C.
            process.wait()


def _stop(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)
