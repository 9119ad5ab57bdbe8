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
from lumigrad.server import errors
from lumigrad.v1 import errors_pb2


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
    retry = details.retry_info(error.retry_seconds)
    return Answer(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{error.what}; try again later", "busy", (retry,))


def _device_memory(_: errors.DeviceMemoryError) -> Answer:
    text = "the device has not enough memory for this call; send fewer cameras, pixels or primitives"
    return Answer(grpc.StatusCode.RESOURCE_EXHAUSTED, text, "device_memory")


def _scene_not_found(error: errors.SceneNotFoundError) -> Answer:
    text = "no such scene on this worker; put it again"
    detail = errors_pb2.SceneNotFound(scene_id=error.scene_id)
    return Answer(grpc.StatusCode.NOT_FOUND, text, "scene_not_found", (detail,))


def _version_mismatch(error: errors.VersionMismatchError) -> Answer:
    text = f"the scene has version {error.actual}, not {error.expected}"
    detail = errors_pb2.VersionMismatch(scene_id=error.scene_id, expected=error.expected, actual=error.actual)
    return Answer(grpc.StatusCode.FAILED_PRECONDITION, text, "version_mismatch", (detail,))


def _context_lost(error: errors.ContextLostError) -> Answer:
    text = "the forward state expired, was evicted or never existed on this worker; render again"
    detail = errors_pb2.ContextLost(context_id=error.context_id)
    return Answer(grpc.StatusCode.FAILED_PRECONDITION, text, "context_lost", (detail,))


def _stopping(_: errors.StoppingError) -> Answer:
    return Answer(grpc.StatusCode.UNAVAILABLE, "the worker is stopping; try again, or another worker", "stopping")


def _deadline(_: errors.DeadlineError) -> Answer:
    return Answer(grpc.StatusCode.DEADLINE_EXCEEDED, "the deadline passed before the work was done", "deadline")


def _cancelled(_: Exception) -> Answer:
    return Answer(grpc.StatusCode.CANCELLED, "the call was cancelled", "cancelled")


_TABLE: Mapping[type, Callable[[Any], Answer]] = {
    errors.InvalidArgumentError: _invalid,
    ProtocolError: _invalid,
    ArgumentError: _kernel_argument,
    errors.BusyError: _busy,
    errors.DeviceMemoryError: _device_memory,
    errors.SceneNotFoundError: _scene_not_found,
    errors.VersionMismatchError: _version_mismatch,
    errors.ContextLostError: _context_lost,
    errors.StoppingError: _stopping,
    errors.DeadlineError: _deadline,
    errors.CancelledError: _cancelled,
    # What grpc raises out of a request stream, and into a reply stream, whose call has ended.
    grpc.RpcError: _cancelled,
    GeneratorExit: _cancelled,
}
