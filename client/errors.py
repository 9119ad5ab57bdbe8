"""The exceptions and warnings of the client; `transport.status` converts a gRPC status into one of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

E = TypeVar("E", bound="InvalidArgument")


# The longest text of an error.
_LONGEST = 500


def shortened(text: str, most: int = _LONGEST) -> str:
    """Shortens `text` to `most` characters by cutting out its middle: errors begin with names and end with advice."""
    if len(text) <= most:
        return text
    tail = (most - 3) // 3
    return f"{text[: most - 3 - tail]} … {text[len(text) - tail :]}"


class LumigradError(Exception):
    """Base of all errors that the client raises; its text has at most 500 characters."""

    def __init__(self, message: str, **facts: Any) -> None:
        """Stores the shortened message; `facts` become attributes of the error."""
        super().__init__(shortened(message))
        vars(self).update(facts)


@dataclass(frozen=True)
class Violation:
    """One invalid argument: its name or path, the expected value and the actual one."""

    field: str
    description: str

    def __post_init__(self) -> None:
        vars(self).update(field=shortened(self.field, _LONGEST // 5), description=shortened(self.description))


class InvalidArgument(LumigradError, ValueError):
    """An argument is invalid; raised by the client or by the worker.

    Attributes:
        violations: every invalid argument.
    """

    violations: tuple[Violation, ...] = ()

    @classmethod
    def of(cls: type[E], field: str, description: str) -> E:
        """Returns an error with one violation; the message is "field: description"."""
        return cls(f"{field}: {description}", violations=(Violation(field, description),))


class ResourceExhausted(LumigradError):
    """The worker is full, or the call exceeds one of its limits.

    Attributes:
        retry_after_s: the delay before another attempt that the worker suggests, seconds; None: it suggests none.
    """

    retry_after_s: float | None = None


class SceneNotFound(LumigradError, LookupError):
    """The worker does not have the scene, and the client has no copy to store again."""

    scene_id: str = ""


class ContextLost(LumigradError):
    """The forward state of a Render expired or was evicted. `Frame.backward` then recomputes it automatically."""

    context_id: str = ""


class LaneLost(LumigradError):
    """The worker or this process lacks shared memory, or room in it. The client repeats the call over the stream."""


class VersionMismatch(LumigradError):
    """The scene was updated after the handle was made."""

    scene_id: str = ""
    expected: int = 0
    actual: int = 0


class TrainingHeld(LumigradError):
    """Another client is training the scene."""

    scene_id: str = ""


class TrainingLost(LumigradError):
    """The worker no longer has the training, or steps of it that only another client could repeat.

    Start again from the last scene, or in the second case from the last snapshot, with `Client.resume_trainer`.
    """

    training_id: str = ""


class StepMismatch(LumigradError):
    """The worker expects a different step number of the training."""

    expected: int = 0
    actual: int = 0


class DeadlineExceeded(LumigradError, TimeoutError):
    """The call took longer than its time-out."""


class Unavailable(LumigradError, ConnectionError):
    """No worker answers at the target.

    Attributes:
        is_lasting: retrying will not help, because the TLS settings of client and worker do not match.
        was_begun: the connection was lost after a worker had begun the call, perhaps because of that call.
    """

    is_lasting: bool = False
    was_begun: bool = False


class Unauthenticated(LumigradError, PermissionError):
    """The worker refused the token, or requires one."""


class Cancelled(LumigradError):
    """The call was cancelled, here or by the worker.

    Attributes:
        is_foreign: something between this program and the worker, such as a proxy, cancelled the call before it began.
    """

    is_foreign: bool = False


class PrecisionWarning(UserWarning):
    """Coordinates lie so far from 0 that float32, in which workers compute, is too coarse for the geometry there."""


class Internal(LumigradError):
    """The worker failed, or violated the protocol."""
