"""What can go wrong inside the worker; `answers.py` says what the caller hears of it."""

from __future__ import annotations

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
