"""RPCs to one worker: deadlines, payload streams and typed exceptions, without retries."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, TypeVar

import grpc
from google.protobuf.message import Message

from lumigrad.client.base.timings import Timings
from lumigrad.client.errors import Cancelled, Internal, InvalidArgument, LaneLost, LumigradError
from lumigrad.client.transport.addresses import Address
from lumigrad.client.transport.call import AFFINITY_METADATA, Call, cancelled_here
from lumigrad.client.transport.channel import Access, open_channel
from lumigrad.client.transport.lanes import Lanes, StreamTrip
from lumigrad.client.transport.status import exception_of, no_answer
from lumigrad.client.transport.tracing import UNTRACED
from lumigrad.protos.buffers import PayloadBuffers
from lumigrad.protos.chunks import LARGEST_MESSAGE_BYTES, SHORT_BYTES, PayloadAssembler
from lumigrad.protos.errors import ProtocolError
from lumigrad.protos.service import (
    DISTANCE_SERVICE,
    FRAME_SERVICE,
    MESSAGE_BYTES,
    RENDER_SERVICE,
    SCENE_SERVICE,
    SENSORSIM_SERVICE,
    SINGLE_REPLY,
    TRAINING_SERVICE,
    WORKER_SERVICE,
    Stub,
)
from lumigrad.protos.streams import collect, frames_of, whole_frame, whole_payload
from lumigrad.protos.tensors import PayloadReader, PayloadWriter
from lumigrad.protos.wire import Frame
from lumigrad.v1 import render_pb2, worker_pb2

M = TypeVar("M", bound=Message)

# Makes the header of a request and appends the tensors to the payload; called anew for each attempt.
Build = Callable[[PayloadWriter], Message]

# The largest payload of a reply; a header that announces more is invalid.
REPLY_LIMIT_BYTES = 1 << 36
# Sizes of reply buffers that are kept for reuse. The C library itself keeps smaller blocks.
_LEAST_KEPT_BYTES = 32 << 20
_MOST_KEPT_BYTES = 512 << 20

# The time-out of calls whose replies are ignored.
_TELL_S = 5.0
# The longest time that `close` waits for gRPC.
_CLOSE_S = 0.5
_FORKED = (
    "this process was forked while its parent had calls in progress, as a trainer or a client of several workers "
    'always has; gRPC does not support that. Fork before the client is used, or start processes by "spawn"'
)
# The parent's connections in a forked child: kept alive, because gRPC's objects must not even be destroyed there.
_LEFT: list[Connection] = []

_Metadata = tuple[tuple[str, str], ...]

_MESSAGE_BYTES = (MESSAGE_BYTES, str(LARGEST_MESSAGE_BYTES))
# Replies with at most this payload are requested as one message; the remaining bytes are for the header.
_MOST_SINGLE_BYTES = LARGEST_MESSAGE_BYTES - (64 << 10)


@dataclass(slots=True)
class Reply(Generic[M]):
    """A complete streamed reply; `reader` returns views of its tensors, whose memory the reply owns.

    `timings` are empty if the service reports none.
    """

    header: M
    reader: PayloadReader
    timings: Timings


class Connection:
    """One channel and its shared-memory `lanes` for payloads. Safe to use from several threads.

    Every RPC here is safe to repeat: results depend only on the request, and each Update has an id, so that the worker
    applies it only once.
    """

    def __init__(self, address: Address, access: Access) -> None:
        """Creates the channel, without connecting."""
        self.target = address.target
        self._metadata = access.metadata
        self.channel = open_channel(address, access.credentials, access.keepalive_s)
        self._closed = self._is_parents = False
        self.render = Stub(self.channel, RENDER_SERVICE)
        self.distances = Stub(self.channel, DISTANCE_SERVICE)
        self.scenes = Stub(self.channel, SCENE_SERVICE)
        self.training = Stub(self.channel, TRAINING_SERVICE)
        self.worker = Stub(self.channel, WORKER_SERVICE)
        self.driving = Stub(self.channel, SENSORSIM_SERVICE)
        self.frames = Stub(self.channel, FRAME_SERVICE)
        self._buffers = PayloadBuffers(_LEAST_KEPT_BYTES, _MOST_KEPT_BYTES)
        self.lanes = Lanes(access.lane, self.target, self._lane_offer)

    def close(self) -> None:
        """Closes the channel; calls in progress are cancelled."""
        self._closed = True
        if not self._is_parents:
            self.lanes.close()
            # gRPC waits forever if the exception of a signal handler has interrupted the start of a call, or has left a
            # lock of gRPC's locked.
            closing = threading.Thread(target=self.channel.close, name="closing", daemon=True)
            # At exit the interpreter starts no threads; the channel then ends with the process.
            with suppress(RuntimeError):
                closing.start()
                closing.join(_CLOSE_S)

    def abandon(self) -> None:
        """Leaves all resources to the parent, in a forked child."""
        self._is_parents = True
        _LEFT.append(self)

    def unary(self, method: Any, request: Message, call: Call) -> Any:
        """Sends one message and returns the reply."""
        with _Rpc(self, call, by_stream=True):
            return self._reply(method, request, self._left_s(call), call, self._metadata + call.metadata)

    def tell(self, method: Any, request: Message, affinity: str, timeout_s: float = _TELL_S) -> None:
        """Sends one message, ignoring errors."""
        routing = ((AFFINITY_METADATA, affinity),) if affinity else ()
        # gRPC raises a ValueError if the channel is closed.
        with suppress(grpc.RpcError, ValueError):
            method(request, timeout=timeout_s, metadata=(*self._metadata, *routing))

    def open_stream(self, method: Any, requests: Iterator[Any], call: Call) -> Any:
        """Opens a bidirectional RPC, which lasts until it breaks or is cancelled; returns gRPC's call."""
        self.check(call)
        return method(requests, metadata=self._metadata + call.metadata)

    def upload(self, method: Any, build: Build, call: Call) -> Any:
        """Sends a header and its payload, and returns the reply."""
        rpc = _Rpc(self, call)
        while True:
            with rpc as trip:
                start, request, metadata = self._sent(method, build(trip.payload), trip, call)
                self.lanes.note(trip.payload.length)
                return self._reply(start, request, self._left_s(call), call, metadata)

    def download(self, method: Any, request: Message, call: Call) -> Reply[Any]:
        """Sends one message, and receives a header and its payload."""
        rpc = _Rpc(self, call)
        while True:
            with rpc as trip:
                return self._received(method, request, self._metadata + call.metadata + trip.metadata, trip, call)

    def exchange(self, method: Any, build: Build, call: Call, most_reply_bytes: float = math.inf) -> Reply[Any]:
        """Sends a header and its payload, and receives a header and its payload of at most `most_reply_bytes`."""
        rpc = _Rpc(self, call)
        while True:
            with rpc as trip:
                header = build(trip.payload)
                trip.note_reply(most_reply_bytes)
                start, request, metadata = self._sent(method, header, trip, call)
                if most_reply_bytes > SHORT_BYTES:
                    metadata = (*metadata, _MESSAGE_BYTES)
                is_single = trip.has_single_reply or most_reply_bytes <= _MOST_SINGLE_BYTES
                if start is not method.single or not is_single or rpc.is_refused_single:
                    return self._received(start, request, metadata, trip, call)
                began = time.perf_counter()
                reply = self._reply(method.once, request, self._left_s(call), call, (*metadata, SINGLE_REPLY))
                return self.collected(reply, None, began, trip, call)

    @property
    def is_parents(self) -> bool:
        """Whether this process is a forked child and the connection belongs to its parent."""
        return self._is_parents

    def check_own(self) -> None:
        """Raises if this process is a forked child and the connection belongs to its parent."""
        if self._is_parents:
            raise LumigradError(_FORKED)

    def check(self, call: Call) -> None:
        """Raises if no RPC may begin: the connection is closed, or the call was cancelled."""
        if call.cancellation is not None:
            call.check()
        if self._is_parents or self._closed:
            self.check_own()
            raise LumigradError("this client is closed; make a new one")

    def exception_of(self, error: BaseException | None, call: Call) -> BaseException | None:
        """Returns the client's exception for an error of gRPC or of the protocol; returns other errors unchanged."""
        if isinstance(error, grpc.RpcError):
            # The call may have failed because it was cancelled or the client was closed.
            call.check()
            if self._closed:
                return Cancelled(f"the client was closed during a call to {self.target}")
            return exception_of(error, self.target, call.timeout_s)
        if isinstance(error, ProtocolError):
            return Internal(f"the worker at {self.target} broke the contract: {error}")
        return error

    def _left_s(self, call: Call) -> float:
        """Returns the seconds left of a call; raises DeadlineExceeded, which names the worker, if none are left."""
        left = call.end - time.monotonic()
        if left <= 0:
            raise no_answer(self.target, call.timeout_s)
        return left

    def _reply(self, method: Any, request: Any, timeout_s: float, call: Call, metadata: _Metadata) -> Any:
        """Calls a method that returns a single reply."""
        if call.cancellation is None:
            # A blocking call needs no second thread.
            return method(request, timeout=timeout_s, metadata=metadata)
        rpc = method.future(request, timeout=timeout_s, metadata=metadata)
        try:
            with call.watching(rpc):
                return rpc.result()
        except grpc.FutureCancelledError:
            raise cancelled_here() from None

    def _sent(self, method: Any, header: Any, trip: StreamTrip, call: Call) -> tuple[Any, Any, _Metadata]:
        """Returns the method to call and its request and metadata; a short request becomes a single message."""
        payload = trip.payload
        if call.trace is not UNTRACED:
            call.trace.note_payload(sent_bytes=payload.length + payload.lane_bytes)
        metadata = self._metadata + call.metadata + trip.metadata
        if payload.length <= SHORT_BYTES:
            return method.single, whole_frame(header, payload), metadata
        return method, frames_of(header, payload), metadata

    def _received(self, method: Any, request: Any, metadata: _Metadata, trip: StreamTrip, call: Call) -> Reply[Any]:
        """Calls a method that returns a stream, and reads it."""
        began = time.perf_counter()
        rpc = method(request, timeout=self._left_s(call), metadata=metadata)
        try:
            with call.watching(rpc):
                frames = iter(rpc)
                return self.collected(next(frames, None), frames, began, trip, call)
        finally:
            # Cancelling also ends the call on the worker, unless it has already ended.
            rpc.cancel()

    def collected(
        self, first: Frame[Any] | None, rest: Iterator[Frame[Any]] | None, began: float, trip: StreamTrip, call: Call
    ) -> Reply[Any]:
        """Reads a reply into a buffer of the length in its header; if `rest` is None, `first` is the whole reply."""
        if first is None or first.message is None:
            raise ProtocolError("reply", "a header first", "nothing" if first is None else "data")
        header = first.message
        later: list[Any] = []
        if rest is None:
            payload = whole_payload(first, self._buffers.lend)
        else:
            assembler = PayloadAssembler(header.payload_bytes, REPLY_LIMIT_BYTES, self._buffers.lend)
            payload = collect(first, rest, assembler, later.append)
        try:
            reader = trip.reader(header, payload)
        except LaneLost:
            # No result will own the forward state of this reply.
            if state := getattr(header, "context_id", ""):
                release, left_s = render_pb2.ReleaseRequest(context_id=state), min(_TELL_S, self._left_s(call))
                self.tell(self.render.Release, release, call.affinity, left_s)
            raise
        if call.trace is not UNTRACED:
            call.trace.note_payload(received_bytes=payload.nbytes + trip.received_bytes)
        self.lanes.note(max(header.payload_bytes, trip.payload.length))
        # The timings are in the last message.
        timings = getattr(later[-1] if later else header, "timings", None)
        return Reply(header, reader, Timings.of(timings, (time.perf_counter() - began) * 1e3))

    def _lane_offer(self, call: Call, seconds: float) -> Any:
        try:
            request, metadata = worker_pb2.OpenLaneRequest(), self._metadata + call.metadata
            return self._reply(self.worker.OpenLane, request, seconds, call, metadata)
        except grpc.RpcError as error:
            raise exception_of(error, self.target, seconds) from error


class _Rpc:
    """The attempts of one RPC, each a `with` block that yields the payload's trip and raises the client's exceptions.

    The first attempt may use the lane; if the worker has lost the lane, a second attempt uses the stream. An attempt
    is also repeated if the worker refuses to send the reply as one message.
    """

    def __init__(self, connection: Connection, call: Call, *, by_stream: bool = False) -> None:
        """Raises if no RPC may begin; with `by_stream` not even the first attempt uses a lane."""
        connection.check(call)
        self._connection = connection
        self._call = call
        self._by_stream = by_stream
        # Whether the worker has refused to send the reply as one message.
        self.is_refused_single = False

    def __enter__(self) -> StreamTrip:
        self._call.trace.note_call(self._connection.target)
        self._trip = trip = StreamTrip() if self._by_stream else self._connection.lanes.trip(self._call)
        return trip

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        self._trip.end(succeeded=error is None)
        if error is None:
            return False
        found = self._connection.exception_of(error, self._call)
        if isinstance(found, LaneLost) and not self._by_stream:
            self._by_stream = True
            return True
        if isinstance(found, InvalidArgument) and not self.is_refused_single:
            self.is_refused_single = any(violation.field == SINGLE_REPLY[0] for violation in found.violations)
            if self.is_refused_single:
                return True
        if found is error or found is None:
            return False
        try:
            # Exceptions whose own frames refer to them, as an RPC of gRPC does that fails, stay until the garbage
            # collector runs, with all that they have passed.
            raise found from error.with_traceback(None)
        finally:
            del found
