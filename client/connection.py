"""Calls to one worker: deadlines, retries, payload streams and typed exceptions. Knows no scene or camera."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import grpc
from google.protobuf.message import Message

from lumigrad.client.channel import Tls, open_channel, resolve_target
from lumigrad.client.errors import Internal, LumigradError
from lumigrad.client.retry import Deadline, retry_unavailable
from lumigrad.client.status import exception_of
from lumigrad.client.timings import Timings
from lumigrad.protos.chunks import PayloadAssembler
from lumigrad.protos.errors import ProtocolError
from lumigrad.protos.service import RENDER_SERVICE, SCENE_SERVICE, WORKER_SERVICE, Stub
from lumigrad.protos.streams import collect, frames_of
from lumigrad.protos.tensors import PayloadReader, PayloadWriter
from lumigrad.protos.wire import Frame
from lumigrad.v1 import timings_pb2

M = TypeVar("M", bound=Message)
T = TypeVar("T")

# No reply can be as long; a header that says so is broken.
_REPLY_LIMIT_BYTES = 1 << 36


@dataclass(frozen=True)
class Reply(Generic[M]):
    """A streamed reply, complete.

    Attributes:
        header: its first message.
        reader: views the tensors of the header in one buffer that belongs to this reply.
        timings: of the call; empty where the service reports none.
    """

    header: M
    reader: PayloadReader
    timings: Timings


class Connection:
    """One channel. Safe to use from several threads."""

    def __init__(self, target: str | None, timeout_s: float, retry_s: float, token: str | None, tls: Tls) -> None:
        self.target = resolve_target(target)
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._channel = open_channel(self.target, tls)
        self._closed = False
        self._unawaited: set[Any] = set()
        self.render = Stub(self._channel, RENDER_SERVICE)
        self.scenes = Stub(self._channel, SCENE_SERVICE)
        self.worker = Stub(self._channel, WORKER_SERVICE)

    def close(self) -> None:
        """Ends the channel; calls in flight are cancelled."""
        self._closed = True
        self._channel.close()

    def deadline(self, timeout_s: float | None) -> Deadline:
        """Starts the clock of a call; None: the connection's time-out."""
        return Deadline(self._timeout_s if timeout_s is None else timeout_s)

    def unary(self, method: Any, request: Message, deadline: Deadline) -> Any:
        """One message there, one back."""
        return self._repeat(lambda left: method(request, timeout=left, metadata=self._metadata), deadline)

    def forget(self, method: Any, request: Message) -> None:
        """One message there; whether it arrives does not matter."""
        call = method.future(request, timeout=self._timeout_s, metadata=self._metadata)
        # A call that nobody holds is cancelled.
        self._unawaited.add(call)
        call.add_done_callback(self._unawaited.discard)

    def upload(self, method: Any, header: Message, payload: PayloadWriter, deadline: Deadline) -> Any:
        """A header and its payload there, one message back."""
        return self._repeat(
            lambda left: method(frames_of(header, payload), timeout=left, metadata=self._metadata), deadline
        )

    def download(self, method: Any, request: Message, deadline: Deadline) -> Reply[Any]:
        """One message there, a header and its payload back."""
        return self._repeat(
            lambda left: _receive(lambda: method(request, timeout=left, metadata=self._metadata)), deadline
        )

    def exchange(self, method: Any, header: Message, payload: PayloadWriter, deadline: Deadline) -> Reply[Any]:
        """A header and its payload there, the same back."""
        return self._repeat(
            lambda left: _receive(lambda: method(frames_of(header, payload), timeout=left, metadata=self._metadata)),
            deadline,
        )

    def _repeat(self, call: Callable[[float], T], deadline: Deadline) -> T:
        """Every call here is safe to repeat: results depend on the request alone, and Update names its version.

        So nothing is ever changed twice; but an Update that was made and whose reply was lost is reported, when it is
        repeated, as a VersionMismatch with `actual` = `expected` + 1.
        """
        return retry_unavailable(lambda: self._attempt(call, deadline), deadline, self._retry_s)

    def _attempt(self, call: Callable[[float], T], deadline: Deadline) -> T:
        if self._closed:
            raise LumigradError("this client is closed; make a new one")
        left = deadline.remaining_s()
        try:
            return call(left)
        except grpc.RpcError as error:
            raise exception_of(error, self.target, deadline.timeout_s) from error
        except ProtocolError as error:
            raise Internal(f"the worker at {self.target} broke the contract: {error}") from error


def _receive(start: Callable[[], Any]) -> Reply[Any]:
    """Reads a stream into one buffer that is allocated when the header says how long it is."""
    began = time.perf_counter()
    call = start()
    try:
        frames: Iterator[Frame[Any]] = iter(call)
        first = next(frames, None)
        if first is None or first.message is None:
            raise ProtocolError("reply", "a header first", "nothing" if first is None else "data")
        header = first.message
        timings = timings_pb2.Timings()
        messages: list[Any] = [header]
        payload = collect(first, frames, PayloadAssembler(header.payload_bytes, _REPLY_LIMIT_BYTES), messages.append)
    finally:
        # Has no effect on a call that is over; otherwise the worker need not go on.
        call.cancel()
    for message in messages:
        if hasattr(message, "timings"):
            timings.MergeFrom(message.timings)
    return Reply(header, PayloadReader(payload), Timings.of(timings, (time.perf_counter() - began) * 1e3))
