"""Errors that end a call, each with what its caller is told, and the exit codes of a worker."""

from __future__ import annotations

import signal
import traceback

import torch

from lumigrad.protos.errors import shortened


class InvalidArgumentError(ValueError):
    """A field of the request is out of its limit."""

    def __init__(self, field: str, limit: str, value: object) -> None:
        self.field = field
        self.limit = limit
        self.value = shortened(value)
        super().__init__(f"{field}: expected {limit}, got {self.value}")


class BusyError(Exception):
    """There is no room for the call just now."""

    def __init__(self, what: str, retry_seconds: float | None) -> None:
        """Without `retry_seconds` there never will be."""
        super().__init__(what)
        self.what = what
        self.retry_seconds = retry_seconds


class DeviceMemoryError(Exception):
    """The device has not enough memory for the call."""

    def __init__(self, asked_bytes: int, available_bytes: int, retry_seconds: float | None = None) -> None:
        """Without `retry_seconds` it never will have."""
        super().__init__(f"{asked_bytes} bytes asked for, {available_bytes} available")
        self.asked_bytes = asked_bytes
        self.available_bytes = available_bytes
        self.retry_seconds = retry_seconds


class DeviceLostError(Exception):
    """The device failed, or did not come back; the worker ends."""


class SceneNotFoundError(LookupError):
    """No such scene here."""

    def __init__(self, scene_id: str) -> None:
        super().__init__(scene_id)
        self.scene_id = shortened(scene_id)


class VersionMismatchError(Exception):
    """The scene has another version than the one named."""

    def __init__(self, scene_id: str, expected: int, actual: int) -> None:
        super().__init__(scene_id)
        self.scene_id = scene_id
        self.expected = expected
        self.actual = actual


class ContextLostError(LookupError):
    """No such forward state here, or no longer."""

    def __init__(self, context_id: str) -> None:
        super().__init__(context_id)
        self.context_id = shortened(context_id)


class LaneLostError(LookupError):
    """The call names a region, and its lane is not open here."""


class NoLaneError(Exception):
    """This worker has no shared memory to offer."""


class TrainingHeldError(Exception):
    """Another client trains the scene."""

    def __init__(self, scene_id: str) -> None:
        super().__init__(scene_id)
        self.scene_id = scene_id


class TrainingLostError(LookupError):
    """No such training here, or no longer."""

    def __init__(self, training_id: str) -> None:
        super().__init__(training_id)
        self.training_id = shortened(training_id)


class StepMismatchError(Exception):
    """The number of a step is not the next one."""

    def __init__(self, expected: int, actual: int) -> None:
        super().__init__(f"{expected}, not {actual}")
        self.expected = expected
        self.actual = actual


class UnauthenticatedError(Exception):
    """The caller is nobody that the worker knows."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class StoppingError(Exception):
    """The worker takes no new calls."""


class DeadlineError(Exception):
    """The caller's deadline has passed."""


class TooLateError(Exception):
    """The caller's deadline is too near for the work."""

    def __init__(self, needed_seconds: float, left_seconds: float) -> None:
        super().__init__(f"{needed_seconds:g} s needed, {left_seconds:g} s left")
        self.needed_seconds = needed_seconds
        self.left_seconds = left_seconds


class CancelledError(Exception):
    """The caller has gone, or the worker is stopping."""


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


# What torch calls it where it has no type of its own: of the CPU's allocator, of libraries on a GPU.
_TEXTS = ("DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory", "out of memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error, or what it was raised from, says that there was no memory."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, MemoryError | torch.cuda.OutOfMemoryError):
            return True
        if isinstance(seen, RuntimeError) and any(text in str(seen) for text in _TEXTS):
            return True
        seen = seen.__cause__
    return False


def release_frames(error: BaseException) -> None:
    """Drop what the frames hold that an error came through: tensors, which are what there is no room for."""
    if error.__traceback__ is not None:
        traceback.clear_frames(error.__traceback__)
    error.__traceback__ = None
