"""Typed error details <-> the trailing metadata of a call, as google.rpc.Status."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2

from lumigrad.v1 import errors_pb2

M = TypeVar("M", bound=Message)

TRAILER = "grpc-status-details-bin"
_KNOWN: tuple[type[Message], ...] = (
    error_details_pb2.BadRequest,
    error_details_pb2.RetryInfo,
    errors_pb2.ContextLost,
    errors_pb2.DeadlineTooNear,
    errors_pb2.DeviceMemoryShort,
    errors_pb2.LaneLost,
    errors_pb2.SceneNotFound,
    errors_pb2.StepMismatch,
    errors_pb2.TrainingHeld,
    errors_pb2.TrainingLost,
    errors_pb2.VersionMismatch,
)


def pack(code: int, message: str, details: Iterable[Message]) -> tuple[str, bytes]:
    """Return the trailing metadata entry for a status; `code` is the number of the grpc.StatusCode."""
    return trailer(status_of(code, message, details))


def status_of(code: int, message: str, details: Iterable[Message]) -> status_pb2.Status:
    """Return a status as a message; `code` is the number of the grpc.StatusCode."""
    status = status_pb2.Status(code=code, message=message)
    for detail in details:
        packed = AnyMessage()
        packed.Pack(detail)
        status.details.append(packed)
    return status


def trailer(status: status_pb2.Status) -> tuple[str, bytes]:
    """Return the trailing metadata entry that carries a status."""
    return TRAILER, status.SerializeToString()


def unpack(trailing_metadata: Iterable[tuple[str, str | bytes]] | None) -> Sequence[Message]:
    """Return the details that a call's trailing metadata holds; kinds unknown here are left out."""
    for key, value in trailing_metadata or ():
        if key == TRAILER and isinstance(value, bytes):
            try:
                status = status_pb2.Status.FromString(value)
                return [detail for packed in status.details for detail in _unpacked(packed)]
            except DecodeError:
                return []
    return []


def find(trailing_metadata: Iterable[tuple[str, str | bytes]] | None, kind: type[M]) -> M | None:
    """Return the first detail of one kind."""
    return next((detail for detail in unpack(trailing_metadata) if isinstance(detail, kind)), None)


def bad_request(field: str, limit: str, value: object) -> error_details_pb2.BadRequest:
    """Name a field that breaks a limit; the description states limit and value."""
    violation = error_details_pb2.BadRequest.FieldViolation(field=field, description=f"expected {limit}, got {value}")
    return error_details_pb2.BadRequest(field_violations=[violation])


def retry_info(seconds: float) -> error_details_pb2.RetryInfo:
    """Ask the caller to wait before the next try."""
    info = error_details_pb2.RetryInfo()
    info.retry_delay.FromNanoseconds(round(seconds * 1e9))
    return info


def _unpacked(packed: AnyMessage) -> list[Message]:
    for kind in _KNOWN:
        message = kind()
        if packed.Unpack(message):
            return [message]
    return []
