"""The requests of a call, as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import grpc

from lumigrad.protos.wire import Frame
from lumigrad.server.call import Call
from lumigrad.server.errors import CancelledError, InvalidArgumentError


def only(requests: Iterator[Any], call: Call) -> Any:
    """The one request of a call that has no more; it is not waited for whether more come."""
    for request in requests:
        return request
    # A caller who goes away before the request has come is told so.
    call.check()
    raise InvalidArgumentError("stream", "one message", "none")


def messages(requests: Iterator[bytes], read: Callable[[bytes], Any], call: Call) -> Iterator[Any]:
    """The requests of a call, which come as bytes that `read` makes messages of, in the call's own thread."""
    while (raw := _next(requests, call)) is not None:
        call.has_begun = True
        request = read(raw)
        if isinstance(request, Frame):
            call.bytes_received += request.data.nbytes
            call.receiving.moved(request.data.nbytes)
        yield request


def _next(requests: Iterator[Any], call: Call) -> Any:
    with call.receiving.during(), suppress(grpc.RpcError):
        return next(requests, None)
    # gRPC's own error holds itself, and with its traceback all that the call held, until garbage is collected.
    raise CancelledError
