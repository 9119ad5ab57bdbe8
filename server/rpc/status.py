"""The one table from exceptions to what the caller hears: status code, text and typed details."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import Message

from lumigrad.kernels.errors import ArgumentError
from lumigrad.protos import details
from lumigrad.protos.errors import ProtocolError
from lumigrad.server.core import errors
from lumigrad.v1 import errors_pb2

_RETRY_SECONDS = 0.1

# For others to end.
_MEMORY_SECONDS = 1.0


@dataclass(frozen=True)
class Answer:
    """A status other than OK, and why in one word for the metrics."""

    code: grpc.StatusCode
    text: str
    reason: str
    details: tuple[Message, ...] = ()

    @property
    def trailing_metadata(self) -> tuple[tuple[str, bytes], ...]:
        """The details, as the client looks for them."""
        if not self.details:
            return ()
        return (details.pack(self.code.value[0], self.text, self.details),)


def answer_to(error: BaseException, request_id: str) -> Answer:
    """What to tell the caller. Nothing of an exception's own text leaves unless the table says so."""
    for kind in type(error).__mro__:
        make = _TABLE.get(kind)
        if make is not None:
            return make(error)
    return Answer(grpc.StatusCode.INTERNAL, f"internal error, request id {request_id}", "internal")


def _invalid(error: errors.InvalidArgumentError | ProtocolError) -> Answer:
    violation = details.bad_request(error.field, error.limit, error.value)
    return Answer(grpc.StatusCode.INVALID_ARGUMENT, str(error), "invalid_argument", (violation,))


def _kernel_argument(error: ArgumentError) -> Answer:
    return _invalid(errors.InvalidArgumentError(error.argument, error.expected, error.actual))


def _busy(error: errors.BusyError) -> Answer:
    if error.retry_seconds is None:
        return Answer(grpc.StatusCode.RESOURCE_EXHAUSTED, error.what, "busy")
    retry = details.retry_info(error.retry_seconds)
    return Answer(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{error.what}; try again later", "busy", (retry,))


def _device_memory(error: errors.DeviceMemoryError) -> Answer:
    asked, available = error.asked_bytes, max(0, error.available_bytes)
    detail = errors_pb2.DeviceMemoryShort(asked_bytes=asked, available_bytes=available)
    what = f"the call takes about {asked} bytes of the device's memory"
    if error.retry_seconds is None:
        text = f"{what}, which has {available} in all; send fewer cameras, pixels, primitives or rows"
        return Answer(grpc.StatusCode.RESOURCE_EXHAUSTED, text, "device_memory", (detail,))
    text = f"{what}, of which too little is free; try again later, or send fewer cameras, pixels, primitives or rows"
    retry = details.retry_info(error.retry_seconds)
    return Answer(grpc.StatusCode.RESOURCE_EXHAUSTED, text, "device_memory", (detail, retry))


def _memory(_: MemoryError) -> Answer:
    text = "the worker has no memory for this call just now; try again later"
    return Answer(grpc.StatusCode.RESOURCE_EXHAUSTED, text, "busy", (details.retry_info(_MEMORY_SECONDS),))


def _scene_not_found(error: errors.SceneNotFoundError) -> Answer:
    text = "no such scene on this worker; put it again"
    detail = errors_pb2.SceneNotFound(scene_id=error.scene_id)
    return Answer(grpc.StatusCode.NOT_FOUND, text, "scene_not_found", (detail,))


def _version_mismatch(error: errors.VersionMismatchError) -> Answer:
    text = f"the scene has version {error.actual}, not {error.expected}"
    detail = errors_pb2.VersionMismatch(scene_id=error.scene_id, expected=error.expected, actual=error.actual)
    return Answer(grpc.StatusCode.FAILED_PRECONDITION, text, "version_mismatch", (detail,))


def _context_lost(error: errors.ContextLostError) -> Answer:
    text = "the forward state expired, was evicted or never existed on this worker; ask again"
    detail = errors_pb2.ContextLost(context_id=error.context_id)
    return Answer(grpc.StatusCode.FAILED_PRECONDITION, text, "context_lost", (detail,))


def _lane_lost(_: errors.LaneLostError) -> Answer:
    text = "the call's lane of shared memory is not open here; send the tensors with the stream"
    return Answer(grpc.StatusCode.FAILED_PRECONDITION, text, "lane_lost", (errors_pb2.LaneLost(),))


def _no_lane(_: errors.NoLaneError) -> Answer:
    text = "this worker has no shared memory to offer (--lane-mib 0)"
    return Answer(grpc.StatusCode.FAILED_PRECONDITION, text, "no_lane")


def _training_held(error: errors.TrainingHeldError) -> Answer:
    text = "another client trains this scene; wait until it has finished, or train a copy"
    detail = errors_pb2.TrainingHeld(scene_id=error.scene_id)
    return Answer(grpc.StatusCode.FAILED_PRECONDITION, text, "training_held", (detail,))


def _training_lost(error: errors.TrainingLostError) -> Answer:
    text = "the training ended, expired or never existed on this worker, and there is no snapshot of it; start again"
    detail = errors_pb2.TrainingLost(training_id=error.training_id)
    return Answer(grpc.StatusCode.FAILED_PRECONDITION, text, "training_lost", (detail,))


def _step_mismatch(error: errors.StepMismatchError) -> Answer:
    text = f"the next step has number {error.expected}, not {error.actual}"
    detail = errors_pb2.StepMismatch(expected=error.expected, actual=error.actual)
    return Answer(grpc.StatusCode.FAILED_PRECONDITION, text, "step_mismatch", (detail,))


def _unauthenticated(error: errors.UnauthenticatedError) -> Answer:
    return Answer(grpc.StatusCode.UNAUTHENTICATED, error.why, "unauthenticated")


def _stopping(_: errors.StoppingError) -> Answer:
    text = "the worker is stopping; try again, or another worker"
    # Tells this from a worker that was lost while it worked on the call.
    return Answer(grpc.StatusCode.UNAVAILABLE, text, "stopping", (details.retry_info(_RETRY_SECONDS),))


def _deadline(_: errors.DeadlineError) -> Answer:
    return Answer(grpc.StatusCode.DEADLINE_EXCEEDED, "the deadline passed before the work was done", "deadline")


def _too_late(error: errors.TooLateError) -> Answer:
    needed, left = error.needed_seconds, max(0.0, error.left_seconds)
    text = f"the call was not begun: it takes {needed:.3g} s at the least, and its deadline is in {left:.3g} s"
    detail = errors_pb2.DeadlineTooNear(needed_seconds=needed, left_seconds=left)
    return Answer(grpc.StatusCode.DEADLINE_EXCEEDED, text, "deadline", (detail,))


def _cancelled(error: errors.CancelledError) -> Answer:
    return Answer(grpc.StatusCode.CANCELLED, str(error) or "the call was cancelled", "cancelled")


def _gone(_: BaseException) -> Answer:
    return _cancelled(errors.CancelledError())


_TABLE: Mapping[type, Callable[[Any], Answer]] = {
    errors.InvalidArgumentError: _invalid,
    ProtocolError: _invalid,
    ArgumentError: _kernel_argument,
    errors.BusyError: _busy,
    errors.DeviceMemoryError: _device_memory,
    MemoryError: _memory,
    errors.SceneNotFoundError: _scene_not_found,
    errors.VersionMismatchError: _version_mismatch,
    errors.ContextLostError: _context_lost,
    errors.LaneLostError: _lane_lost,
    errors.NoLaneError: _no_lane,
    errors.TrainingHeldError: _training_held,
    errors.TrainingLostError: _training_lost,
    errors.StepMismatchError: _step_mismatch,
    errors.UnauthenticatedError: _unauthenticated,
    errors.StoppingError: _stopping,
    errors.DeadlineError: _deadline,
    errors.TooLateError: _too_late,
    errors.CancelledError: _cancelled,
    # What grpc raises out of a request stream, and into a reply stream, whose call has ended.
    grpc.RpcError: _gone,
    GeneratorExit: _gone,
}
