"""What goes wrong, as exception types that say what to do. Turning a gRPC status into one is `status`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

E = TypeVar("E", bound="InvalidArgument")


class LumigradError(Exception):
    """Base of every error that the client raises."""


@dataclass(frozen=True)
class Violation:
    """One argument that was refused: its name or path, and what was expected and came."""

    field: str
    description: str


class InvalidArgument(LumigradError, ValueError):
    """An argument was refused, by the client or by the worker.

    Attributes:
        violations: every refused argument.
    """

    def __init__(self, message: str, violations: tuple[Violation, ...] = ()) -> None:
        super().__init__(message)
        self.violations = violations

    @classmethod
    def of(cls: type[E], field: str, description: str) -> E:
        """One violation; the message is "field: description"."""
        return cls(f"{field}: {description}", (Violation(field, description),))


class ResourceExhausted(LumigradError):
    """The worker is full, or the call exceeds one of its limits.

    Attributes:
        retry_after_s: seconds after which the worker suggests another attempt; None if it suggests none.
    """

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class SceneNotFound(LumigradError, LookupError):
    """The worker has no such scene, and the client holds no copy that it could put again."""

    def __init__(self, message: str, scene_id: str) -> None:
        super().__init__(message)
        self.scene_id = scene_id


class ContextLost(LumigradError):
    """The forward state of a Render expired or was evicted. `Frame.backward` repairs this by itself."""

    def __init__(self, message: str, context_id: str) -> None:
        super().__init__(message)
        self.context_id = context_id


class LaneLost(LumigradError):
    """The worker does not know the call's lane of shared memory. The client repeats the call with the stream."""


class VersionMismatch(LumigradError):
    """Somebody updated the scene since the handle was made."""

    def __init__(self, message: str, scene_id: str, expected: int, actual: int) -> None:
        super().__init__(message)
        self.scene_id = scene_id
        self.expected = expected
        self.actual = actual


class TrainingHeld(LumigradError):
    """Another client trains the scene."""

    def __init__(self, message: str, scene_id: str) -> None:
        super().__init__(message)
        self.scene_id = scene_id


class TrainingLost(LumigradError):
    """The worker has no such training any more, and no snapshot of it: start again from the last scene."""

    def __init__(self, message: str, training_id: str) -> None:
        super().__init__(message)
        self.training_id = training_id


class StepMismatch(LumigradError):
    """The worker expects another step of a training next."""

    def __init__(self, message: str, expected: int, actual: int) -> None:
        super().__init__(message)
        self.expected = expected
        self.actual = actual


class DeadlineExceeded(LumigradError, TimeoutError):
    """The call took longer than its time-out."""


class Unavailable(LumigradError, ConnectionError):
    """No worker answers at the target.

    Attributes:
        is_lasting: trying again will not help: the two sides do not agree about TLS.
        was_begun: a worker had begun the call when it was lost; perhaps because of the call.
    """

    def __init__(self, message: str, *, is_lasting: bool = False, was_begun: bool = False) -> None:
        super().__init__(message)
        self.is_lasting = is_lasting
        self.was_begun = was_begun


class Unauthenticated(LumigradError, PermissionError):
    """The worker refused the token, or asked for one."""


class Cancelled(LumigradError):
    """The call was cancelled, here or by the worker.

    Attributes:
        is_foreign: neither this program nor the worker asked for it: something in between ended the call before it was
            begun.
    """

    def __init__(self, message: str, *, is_foreign: bool = False) -> None:
        super().__init__(message)
        self.is_foreign = is_foreign


class Internal(LumigradError):
    """The worker failed, or it and the client disagree about the protocol."""
