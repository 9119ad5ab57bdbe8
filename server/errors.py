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

    def __init__(self, what: str, retry_seconds: float) -> None:
        super().__init__(what)
        self.what = what
        self.retry_seconds = retry_seconds


class DeviceMemoryError(Exception):
    """The device has not enough memory for the call."""


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


class StoppingError(Exception):
    """The worker takes no new calls."""


class DeadlineError(Exception):
    """The caller's deadline has passed."""


class CancelledError(Exception):
    """The caller has gone, or the worker is stopping."""
