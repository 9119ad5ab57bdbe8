"""Calls with messages as bytes, which may be malformed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import grpc

from lumigrad.protos.service import Method
from lumigrad.v1 import render_pb2

Code = grpc.StatusCode
# The statuses of valid, invalid and too large requests, and of requests about missing objects; never an internal error.
CALLERS_FAULT = {Code.OK, Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.FAILED_PRECONDITION, Code.RESOURCE_EXHAUSTED}


def send(channel: grpc.Channel, method: Method, requests: Sequence[bytes], **options: Any) -> list[bytes]:
    """Make a call, and read its reply to the end; returns the messages."""
    kinds: dict[tuple[bool, bool], Callable[..., Any]] = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, False): channel.stream_unary,
        (True, True): channel.stream_stream,
    }
    call = kinds[method.client_streaming, method.server_streaming](method.path, lambda raw: raw, lambda raw: raw)
    reply = call(iter(requests) if method.client_streaming else requests[0], timeout=150, **options)
    return list(reply) if method.server_streaming else [reply]


def status_of(channel: grpc.Channel, method: Method, requests: Sequence[bytes]) -> grpc.StatusCode:
    """The status of a call, or of the first failed item of a batch or stream; fails if a text reveals internals."""
    try:
        header = send(channel, method, requests)[:1]
    except grpc.RpcError as error:
        _check_text(error.details())
        return error.code()
    if not header or method.name not in ("RenderBatch", "RenderStream"):
        return Code.OK
    if method.name == "RenderStream":
        statuses = [render_pb2.FrameReply.FromString(header[0]).status]
    else:
        statuses = [item.status for item in render_pb2.RenderBatchReply.FromString(header[0]).items]
    for status in statuses:
        _check_text(status.message)
    number = next((status.code for status in statuses if status.code), 0)
    return next(code for code in Code if code.value[0] == number)


def _check_text(text: str) -> None:
    assert "Exception" not in text
    assert ".py" not in text, "the text names a source file"


def varint(value: int) -> bytes:
    """Encode a number as a protobuf varint."""
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
