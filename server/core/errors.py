"""Errors that end a call, with the details that its status reports, and the exit codes of a worker."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from lumigrad.protos.errors import ProtocolError


class InvalidArgumentError(ProtocolError):
    """A field of the request is invalid."""


class UnknownNameError(InvalidArgumentError):
    """A field of the request names something that does not exist."""


class OutOfRangeError(InvalidArgumentError):
    """A field of the request is outside the range of the scene."""


@dataclass(eq=False)
class ForbiddenError(Exception):
    """The caller may not do this."""

    why: str


@dataclass(eq=False)
class SceneFilesError(Exception):
    """The files of a scene that the worker reads itself are missing or invalid."""

    why: str


class SceneFilesBusyError(SceneFilesError):
    """The files of a scene cannot be read just now; a retry can help."""


@dataclass(eq=False)
class BusyError(Exception):
    """Too little of a shared resource is left for the call.

    Attributes:
        retry_seconds: When to retry; None if retrying cannot help.
    """

    what: str
    retry_seconds: float | None


class DeviceMemoryError(Exception):
    """The device has too little memory for the call."""

    def __init__(self, asked_bytes: int, available_bytes: int, retry_seconds: float | None = None) -> None:
        """Create the error; `retry_seconds` is None if retrying cannot help."""
        super().__init__(f"{asked_bytes} bytes asked for, {available_bytes} available")
        self.asked_bytes = asked_bytes
        self.available_bytes = available_bytes
        self.retry_seconds = retry_seconds


@dataclass(eq=False)
class DeviceTimeError(Exception):
    """The call has taken more of the device's time than one call may."""

    limit_seconds: float


class DeviceLostError(Exception):
    """The device failed or does not respond; the worker exits."""


@dataclass(eq=False)
class SceneNotFoundError(LookupError):
    """The worker has no scene of this name."""

    scene_id: str


@dataclass(eq=False)
class VersionMismatchError(Exception):
    """The scene's version is not the expected one."""

    scene_id: str
    expected: int
    actual: int


@dataclass(eq=False)
class ContextLostError(LookupError):
    """The worker does not have this forward state, or no longer."""

    context_id: str


class LaneLostError(LookupError):
    """The call names a region of a lane that is not open, or needs room that its lane does not have."""


class NoLaneError(Exception):
    """The worker has no shared-memory lanes."""


@dataclass(eq=False)
class TrainingHeldError(Exception):
    """Another client is training the scene."""

    scene_id: str


@dataclass(eq=False)
class TrainingLostError(LookupError):
    """The worker does not have this training, or no longer."""

    training_id: str


@dataclass(eq=False)
class StepMismatchError(Exception):
    """The step's number is not the next one."""

    expected: int
    actual: int


@dataclass(eq=False)
class UnauthenticatedError(Exception):
    """The caller is not authenticated."""

    why: str


class StoppingError(Exception):
    """The worker is stopping and accepts no new calls."""


class DeadlineError(Exception):
    """The caller's deadline has passed."""


@dataclass(eq=False)
class DeadlineTooNearError(Exception):
    """The time left until the caller's deadline is too short for the work."""

    needed_seconds: float
    left_seconds: float


class CancelledError(Exception):
    """The caller or the worker has cancelled the call."""


STOPPED = 0
DEVICE_ERROR = 1
# An invalid configuration: restarting the worker cannot help.
CONFIG_ERROR = 2
# The device failed in a way that only a new process can recover from.
DEVICE_LOST = 3
HANG = 4
# The supervisor has restarted a worker too often.
GAVE_UP = 5
# The device has no memory for calls that should fit.
OUT_OF_MEMORY = 6

# The previous exit that the first worker reports.
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
    """Return why a process ended, from its exit code or the negative number of the signal."""
    return _REASONS.get(code, CRASH)
