"""What goes wrong, as exception types that say what to do. Turning a gRPC status into one is `status`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

E = TypeVar("E", bound="InvalidArgument")


class LumigradError(Exception):
    """Base of every error that the client raises."""

    def __init__(self, message: str, **facts: Any) -> None:
        """`facts` are the attributes of the error."""
        super().__init__(message)
        vars(self).update(facts)


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

    violations: tuple[Violation, ...] = ()

    @classmethod
    def of(cls: type[E], field: str, description: str) -> E:
        """One violation; the message is "field: description"."""
        return cls(f"{field}: {description}", violations=(Violation(field, description),))


class ResourceExhausted(LumigradError):
    """The worker is full, or the call exceeds one of its limits.

    Attributes:
        retry_after_s: seconds after which the worker suggests another attempt; None if it suggests none.
    """

    retry_after_s: float | None = None


class SceneNotFound(LumigradError, LookupError):
    """The worker has no such scene, and the client holds no copy that it could put again."""

    scene_id: str = ""


class ContextLost(LumigradError):
    """The forward state of a Render expired or was evicted. `Frame.backward` repairs this by itself."""

    context_id: str = ""


class LaneLost(LumigradError):
    """The worker does not know the call's lane of shared memory. The client repeats the call with the stream."""


class VersionMismatch(LumigradError):
    """Somebody updated the scene since the handle was made."""

    scene_id: str = ""
    expected: int = 0
    actual: int = 0


class TrainingHeld(LumigradError):
    """Another client trains the scene."""

    scene_id: str = ""


class TrainingLost(LumigradError):
    """The worker has no such training any more, and no snapshot of it: start again from the last scene."""

    training_id: str = ""


class StepMismatch(LumigradError):
    """The worker expects another step of a training next."""

    expected: int = 0
    actual: int = 0


class DeadlineExceeded(LumigradError, TimeoutError):
    """The call took longer than its time-out."""


class Unavailable(LumigradError, ConnectionError):
    """No worker answers at the target.

    Attributes:
        is_lasting: trying again will not help: the two sides do not agree about TLS.
        was_begun: a worker had begun the call when it was lost; perhaps because of the call.
    """

    is_lasting: bool = False
    was_begun: bool = False


class Unauthenticated(LumigradError, PermissionError):
    """The worker refused the token, or asked for one."""


class Cancelled(LumigradError):
    """The call was cancelled, here or by the worker.

    Attributes:
        is_foreign: neither this program nor the worker asked for it: something in between ended the call before it was
            begun.
    """

    is_foreign: bool = False


class Internal(LumigradError):
    """The worker failed, or it and the client disagree about the protocol."""
