"""The table of statuses for exceptions: status code, text and typed details."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from google.protobuf.message import Message
from google.rpc.error_details_pb2 import RetryInfo
from grpc import RpcError, StatusCode

from lumigrad.kernels.errors import ArgumentError
from lumigrad.protos import details
from lumigrad.protos.errors import ProtocolError, shortened
from lumigrad.server.core import errors
from lumigrad.v1 import errors_pb2


@dataclass(frozen=True)
class Answer:
    """A status other than OK, with the reason as a label of the metrics."""

    code: StatusCode
    text: str
    reason: str
    details: tuple[Message, ...] = ()

    @property
    def trailing_metadata(self) -> tuple[tuple[str, bytes], ...]:
        """The typed details as metadata."""
        if not self.details:
            return ()
        return (details.pack(self.code.value[0], self.text, self.details),)


def answer_to(error: BaseException, request_id: str) -> Answer:
    """Return the status for an exception; only types marked in the table send the exception's own text."""
    for kind in type(error).__mro__:
        make = _TABLE.get(kind)
        if make is not None:
            return make(error)
    return Answer(StatusCode.INTERNAL, f"internal error, request id {request_id}", "internal")


def _formatted(code: StatusCode, reason: str, text: str, retry_seconds: float | None = None) -> Callable[[Any], Answer]:
    """Return a function that formats a status; `text` may contain attributes of the exception in braces.

    The detail is the message named like the exception, if there is one; its fields are the exception's attributes.
    """

    def answer(error: BaseException) -> Answer:
        found: list[Message] = []
        detail = getattr(errors_pb2, type(error).__name__.removesuffix("Error"), None)
        if detail is not None:
            values = {field.name: getattr(error, field.name) for field in detail.DESCRIPTOR.fields}
            found = [detail(**{name: shortened(it) if isinstance(it, str) else it for name, it in values.items()})]
        if retry_seconds is not None:
            found.append(details.retry_info(retry_seconds))
        return Answer(code, text.format(**vars(error)), reason, tuple(found))

    return answer


def unavailable_if_busy(answer: Answer) -> Answer:
    """Replace RESOURCE_EXHAUSTED by UNAVAILABLE if a retry can help, for callers that retry only UNAVAILABLE."""
    can_help = any(isinstance(detail, RetryInfo) for detail in answer.details)
    return replace(answer, code=StatusCode.UNAVAILABLE) if answer.code == _EXHAUSTED and can_help else answer


def _violated(code: StatusCode, reason: str) -> Callable[[Any], Answer]:
    def answer(error: ProtocolError) -> Answer:
        violation = details.bad_request(error.field, error.limit, error.value)
        return Answer(code, str(error), reason, (violation,))

    return answer


_invalid = _violated(StatusCode.INVALID_ARGUMENT, "invalid_argument")


def _kernel_argument(error: ArgumentError) -> Answer:
    return _invalid(errors.InvalidArgumentError(error.argument, error.expected, error.actual))


def _busy(error: errors.BusyError) -> Answer:
    if error.retry_seconds is None:
        return Answer(StatusCode.RESOURCE_EXHAUSTED, error.what, "busy")
    retry = details.retry_info(error.retry_seconds)
    return Answer(StatusCode.RESOURCE_EXHAUSTED, f"{error.what}; try again later", "busy", (retry,))


# The remedies for too little memory or time.
_LESS = "send fewer cameras, pixels, primitives or rows, or primitives that cover less of the image"


def _device_memory(error: errors.DeviceMemoryError) -> Answer:
    asked, available = error.asked_bytes, max(0, error.available_bytes)
    detail = errors_pb2.DeviceMemoryShort(asked_bytes=asked, available_bytes=available)
    what = f"the call takes about {asked} bytes of the device's memory (--device-memory-mib)"
    if error.retry_seconds is None:
        text = f"{what}, of which it can have at most {available}; {_LESS}"
        return Answer(StatusCode.RESOURCE_EXHAUSTED, text, "device_memory", (detail,))
    text = f"{what}, of which too little is free; try again later, or {_LESS}"
    retry = details.retry_info(error.retry_seconds)
    return Answer(StatusCode.RESOURCE_EXHAUSTED, text, "device_memory", (detail, retry))


def _device_time(error: errors.DeviceTimeError) -> Answer:
    limit = f"more than the {error.limit_seconds:g} s of the device that one call may have (--max-device-seconds)"
    return Answer(StatusCode.RESOURCE_EXHAUSTED, f"the call took {limit}; {_LESS}", "device_time")


def _cancelled(error: errors.CancelledError) -> Answer:
    return Answer(StatusCode.CANCELLED, str(error) or "the call was cancelled", "cancelled")


def _gone(_: BaseException) -> Answer:
    return _cancelled(errors.CancelledError())


_EXHAUSTED, _PRECONDITION = StatusCode.RESOURCE_EXHAUSTED, StatusCode.FAILED_PRECONDITION
# Retry times: until other calls end, until the client finds another worker, and until a server of files answers.
_MEMORY_SECONDS = 1.0
_STOPPING_SECONDS = 0.1
_FILES_SECONDS = 1.0
_NO_MEMORY = "the worker has no memory for this call just now; try again later"
_CONTEXT_LOST = "the forward state expired, was evicted or never existed on this worker; ask again"
_LANE_LOST = "the call's lane of shared memory is not open here, or has no room; send the tensors with the stream"
_TRAINING_HELD = (
    "another client trains this scene, or did so less than a minute ago; wait, train a copy, or continue that training "
    "with resume_trainer, for which the worker keeps it for --training-seconds"
)
_TRAINING_LOST = (
    "the training ended, expired (--training-seconds) or never existed on this worker, and there is no snapshot of it; "
    "start again"
)
_STOPPING = "the worker is stopping; try again, or another worker"
_TOO_NEAR = (
    "the call was not begun: it takes {needed_seconds:.3g} s at the least, and its deadline is in {left_seconds:.3g} s"
)
_TABLE: Mapping[type, Callable[[Any], Answer]] = {
    ProtocolError: _invalid,
    errors.UnknownNameError: _violated(StatusCode.NOT_FOUND, "unknown_name"),
    errors.OutOfRangeError: _violated(StatusCode.OUT_OF_RANGE, "out_of_range"),
    errors.ForbiddenError: _formatted(StatusCode.PERMISSION_DENIED, "forbidden", "{why}"),
    errors.SceneFilesError: _formatted(_PRECONDITION, "scene_files", "{why}"),
    errors.SceneFilesBusyError: _formatted(StatusCode.UNAVAILABLE, "scene_files", "{why}", _FILES_SECONDS),
    ArgumentError: _kernel_argument,
    errors.BusyError: _busy,
    errors.DeviceMemoryError: _device_memory,
    errors.DeviceTimeError: _device_time,
    MemoryError: _formatted(_EXHAUSTED, "busy", _NO_MEMORY, _MEMORY_SECONDS),
    errors.SceneNotFoundError: _formatted(
        StatusCode.NOT_FOUND, "scene_not_found", "no such scene on this worker; put it again"
    ),
    errors.VersionMismatchError: _formatted(
        _PRECONDITION, "version_mismatch", "the scene has version {actual}, not {expected}"
    ),
    errors.ContextLostError: _formatted(_PRECONDITION, "context_lost", _CONTEXT_LOST),
    errors.LaneLostError: _formatted(_PRECONDITION, "lane_lost", _LANE_LOST),
    errors.NoLaneError: _formatted(
        _PRECONDITION, "no_lane", "this worker has no shared memory to offer (--lane-mib 0)"
    ),
    errors.TrainingHeldError: _formatted(_PRECONDITION, "training_held", _TRAINING_HELD),
    errors.TrainingLostError: _formatted(_PRECONDITION, "training_lost", _TRAINING_LOST),
    errors.StepMismatchError: _formatted(
        _PRECONDITION, "step_mismatch", "the next step has number {expected}, not {actual}"
    ),
    errors.UnauthenticatedError: _formatted(StatusCode.UNAUTHENTICATED, "unauthenticated", "{why}"),
    # The retry time distinguishes this from the loss of a worker during the call.
    errors.StoppingError: _formatted(StatusCode.UNAVAILABLE, "stopping", _STOPPING, _STOPPING_SECONDS),
    errors.DeadlineError: _formatted(
        StatusCode.DEADLINE_EXCEEDED, "deadline", "the deadline passed before the work was done"
    ),
    errors.DeadlineTooNearError: _formatted(StatusCode.DEADLINE_EXCEEDED, "deadline", _TOO_NEAR),
    errors.CancelledError: _cancelled,
    # Raised by grpc from the request stream, or into the reply stream, of a call that has ended.
    RpcError: _gone,
    GeneratorExit: _gone,
}
