"""The process in which a supervisor runs a worker: it loads everything, waits for its order, and serves."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys

# prctl(2): the signal that a process is sent when its parent dies.
_PR_SET_PDEATHSIG = 1
_LINE = 0
# The environment variable that tells a worker whose it is.
PARENT = "LUMIGRAD_SUPERVISOR"

# A file called torch.py in the current directory is none of ours.
COMMAND = (
    sys.executable,
    "-c",
    "import sys; sys.path[:] = filter(None, sys.path); from lumigrad.server.supervised import main; sys.exit(main())",
)


def main() -> int:
    """Run one worker as the order on standard input says; returns the exit code."""
    _die_with_parent()
    line = socket.socket(fileno=_LINE)
    # Imported before the order comes: this is what takes the time when a worker is needed at once.
    from lumigrad.server import process
    from lumigrad.server.link import WorkerEnd

    end = WorkerEnd(line)
    order = end.order()
    return 0 if order is None else process.run(order.config, order.history, end)


def _die_with_parent() -> None:
    """Leave no worker behind that holds the port and the device, however the supervisor ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # It may have gone before it was asked for.
    if str(os.getppid()) != os.environ.get(PARENT):
        os._exit(0)
