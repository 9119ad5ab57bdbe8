"""How a worker, or its supervisor, ends: the exit codes, and one word for each that the metrics show."""

from __future__ import annotations

import signal

STOPPED = 0
DEVICE_ERROR = 1
# A configuration that cannot work: no use to start the worker again.
CONFIG_ERROR = 2
# The device failed in a way that only a new process gets over.
DEVICE_LOST = 3
HANG = 4
# The supervisor has started a worker so often that it does not expect the next start to help.
GAVE_UP = 5
# The device has no memory for calls that it should have some for.
OUT_OF_MEMORY = 6

# No worker ran before this one.
FIRST = "none"
CRASH = "crash"
KILLED = "killed"
HUNG = "hang"
_REASONS = {
    STOPPED: "stopped",
    DEVICE_ERROR: "device_error",
    CONFIG_ERROR: "configuration",
    DEVICE_LOST: "device_lost",
    HANG: HUNG,
    OUT_OF_MEMORY: "out_of_memory",
    -signal.SIGKILL: KILLED,
}
REASONS = (FIRST, *_REASONS.values(), CRASH)


def reason(code: int) -> str:
    """Why a process ended, by its exit code, or the negative number of the signal that ended it."""
    return _REASONS.get(code, CRASH)
