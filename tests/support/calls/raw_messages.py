"""Calls with messages as bytes, which may be malformed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import grpc

from lumigrad.protos.service import Method

Code = grpc.StatusCode
# The statuses of valid, invalid and too large requests, and of requests about missing objects; never an internal error.
CALLERS_FAULT = {Code.OK, Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.FAILED_PRECONDITION, Code.RESOURCE_EXHAUSTED}


def send(channel: grpc.Channel, method: Method, requests: Sequence[bytes], **options: Any) -> None:
    """Make a call, and read its reply to the end."""
    kinds: dict[tuple[bool, bool], Callable[..., Any]] = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, False): channel.stream_unary,
        (True, True): channel.stream_stream,
    }
    call = kinds[method.client_streaming, method.server_streaming](method.path, lambda raw: raw, lambda raw: raw)
    reply = call(iter(requests) if method.client_streaming else requests[0], timeout=30, **options)
    if method.server_streaming:
        for _ in reply:
            pass


def status_of(channel: grpc.Channel, method: Method, requests: Sequence[bytes]) -> grpc.StatusCode:
    """The status of a call; asserts that its text reveals nothing internal."""
    try:
        send(channel, method, requests)
    except grpc.RpcError as error:
        assert "Exception" not in error.details()
        assert ".py" not in error.details(), "the text names a source file"
        return error.code()
    return Code.OK


def varint(value: int) -> bytes:
    """Encode a number as a protobuf varint."""
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
