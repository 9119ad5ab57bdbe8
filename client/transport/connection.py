"""RPCs to one worker: deadlines, payload streams and typed exceptions, without retries."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import grpc
from google.protobuf.message import Message

from lumigrad.client.base.timings import Timings
from lumigrad.client.errors import Cancelled, Internal, LumigradError
from lumigrad.client.transport.addresses import Address
from lumigrad.client.transport.call import AFFINITY_METADATA, Call, cancelled_here
from lumigrad.client.transport.channel import Access, open_channel
from lumigrad.client.transport.lanes import Lanes, StreamTrip, Trips
from lumigrad.client.transport.status import exception_of
from lumigrad.protos.buffers import PayloadBuffers
from lumigrad.protos.chunks import SHORT_BYTES, PayloadAssembler
from lumigrad.protos.errors import ProtocolError
from lumigrad.protos.service import (
    DISTANCE_SERVICE,
    FRAME_SERVICE,
    RENDER_SERVICE,
    SCENE_SERVICE,
    SENSORSIM_SERVICE,
    SINGLE_REPLY,
    TRAINING_SERVICE,
    WORKER_SERVICE,
    Stub,
)
from lumigrad.protos.streams import collect, frames_of
from lumigrad.protos.tensors import PayloadReader, PayloadWriter
from lumigrad.protos.wire import Frame
from lumigrad.v1 import timings_pb2, worker_pb2

M = TypeVar("M", bound=Message)

# Makes the header of a request and appends the tensors to the payload; called anew for each attempt.
Build = Callable[[PayloadWriter], Message]

# The largest payload of a reply; a header that announces more is invalid.
REPLY_LIMIT_BYTES = 1 << 36
# Memory of replies that is kept for the next ones. The C library itself keeps smaller blocks.
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


@dataclass(frozen=True)
class Reply(Generic[M]):
    """A complete streamed reply; `reader` returns views of its tensors, whose memory the reply owns.

    `timings` are empty where the service reports none.
    """

    header: M
    reader: PayloadReader
    timings: Timings


class Connection:
    """One channel. Safe to use from several threads.

    Every RPC here is safe to repeat: results depend on the request alone, and each Update has an id, by which the
    worker applies it only once.
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
        self._lanes = Lanes(access.lane, self.target, self._lane_offer)

    def close(self) -> None:
        """Closes the channel; calls in progress are cancelled."""
        self._closed = True
        if not self._is_parents:
            self._lanes.close()
            # gRPC waits for ever for a call whose start a signal's exception has interrupted, and for a lock of its own
            # that such an exception has left locked.
            closing = threading.Thread(target=self.channel.close, name="closing", daemon=True)
            # At the interpreter's end there are no more threads, and the channel ends with the process.
            with suppress(RuntimeError):
                closing.start()
                closing.join(_CLOSE_S)

    def abandon(self) -> None:
        """In a forked child: leaves all resources to the parent."""
        self._is_parents = True
        _LEFT.append(self)

    def lane(self, call: Call) -> str:
        """The lane of large payloads, "shared" or "stream"."""
        return self._lanes.kind(call)

    def unary(self, method: Any, request: Message, call: Call) -> Any:
        """Sends one message and returns the reply."""
        self._check(call)
        with self._rpc(call) as left:
            return self._reply(method, request, left, call)

    def tell(self, method: Any, request: Message, affinity: str) -> None:
        """Sends one message; errors are ignored."""
        routing = ((AFFINITY_METADATA, affinity),) if affinity else ()
        # gRPC raises a ValueError if the channel is closed.
        with suppress(grpc.RpcError, ValueError):
            method(request, timeout=_TELL_S, metadata=(*self._metadata, *routing))

    def trip(self, call: Call) -> StreamTrip:
        """Begins the way of one request and its replies, by the lane if there is one; `note` what it carried."""
        return self._lanes.trip(call)

    def note(self, payload_bytes: int) -> None:
        """Notes how many bytes of a payload travelled with a stream: a lane is opened once they are many."""
        self._lanes.note(payload_bytes)

    def open_stream(self, method: Any, frames: Iterator[Frame[Any]], call: Call) -> Any:
        """Opens a bidirectional RPC, which lasts until it is cancelled or breaks; returns gRPC's call."""
        self._check(call)
        return method(frames, metadata=self._metadata + call.metadata)

    def upload(self, method: Any, build: Build, call: Call) -> Any:
        """Sends a header and its payload, and returns the reply."""
        self._check(call)
        trips = Trips(self._lanes, call)
        while True:
            with trips as trip, self._rpc(call) as left:
                start, frames, metadata = self._sent(method, build(trip.payload), trip, call)
                return self._reply(start, frames, left, call, metadata)

    def download(self, method: Any, request: Message, call: Call) -> Reply[Any]:
        """Sends one message, and receives a header and its payload."""
        self._check(call)
        trips = Trips(self._lanes, call)
        while True:
            with trips as trip, self._rpc(call) as left:
                began = time.perf_counter()
                rpc = method(request, timeout=left, metadata=self._metadata + call.metadata + trip.metadata)
                return self._received(rpc, began, trip, call)

    def exchange(self, method: Any, build: Build, call: Call, most_reply_bytes: float = math.inf) -> Reply[Any]:
        """Sends a header and its payload, and receives a header and its payload of at most `most_reply_bytes`."""
        self._check(call)
        trips = Trips(self._lanes, call)
        while True:
            with trips as trip, self._rpc(call) as left:
                start, frames, metadata = self._sent(method, build(trip.payload), trip, call)
                began = time.perf_counter()
                is_short = trip.has_single_reply or most_reply_bytes <= SHORT_BYTES
                if start is method.single and is_short:
                    reply = self._reply(method.once, frames, left, call, (*metadata, SINGLE_REPLY))
                    return self._collected(iter((reply,)), began, trip, call)
                return self._received(start(frames, timeout=left, metadata=metadata), began, trip, call)

    @property
    def is_parents(self) -> bool:
        """Whether this process is a forked child and the connection belongs to its parent."""
        return self._is_parents

    def check_own(self) -> None:
        """Raises if this process is a forked child and the connection belongs to its parent."""
        if self._is_parents:
            raise LumigradError(_FORKED)

    def _check(self, call: Call) -> None:
        """Raises if no RPC may begin: the connection is closed, or the call is over."""
        call.check()
        self.check_own()
        if self._closed:
            raise LumigradError("this client is closed; make a new one")

    @contextmanager
    def _rpc(self, call: Call) -> Iterator[float]:
        """Yields the seconds left for an RPC, and turns gRPC's errors into the client's exceptions."""
        left = call.remaining_s()
        call.trace.note_call(self.target)
        try:
            yield left
        except grpc.RpcError as error:
            # The call may have failed because it was cancelled or the client was closed.
            call.check()
            if self._closed:
                raise Cancelled(f"the client was closed during a call to {self.target}") from error
            raise exception_of(error, self.target, call.timeout_s) from error
        except ProtocolError as error:
            raise Internal(f"the worker at {self.target} broke the contract: {error}") from error

    def _reply(self, method: Any, request: Any, timeout_s: float, call: Call, metadata: _Metadata | None = None) -> Any:
        """Calls a method that returns a single reply."""
        metadata = self._metadata + call.metadata if metadata is None else metadata
        if call.cancellation is None:
            # The blocking call needs no other thread.
            return method(request, timeout=timeout_s, metadata=metadata)
        rpc = method.future(request, timeout=timeout_s, metadata=metadata)
        try:
            with call.watching(rpc):
                return rpc.result()
        except grpc.FutureCancelledError:
            raise cancelled_here() from None

    def _sent(self, method: Any, header: Message, trip: StreamTrip, call: Call) -> tuple[Any, Any, _Metadata]:
        """Returns the method to call, its request and its metadata."""
        call.trace.note_payload(sent_bytes=trip.payload.length + trip.payload.lane_bytes)
        frames, metadata = frames_of(header, trip.payload), self._metadata + call.metadata + trip.metadata
        return (
            (method.single, next(frames), metadata)
            if trip.payload.length <= SHORT_BYTES
            else (method, frames, metadata)
        )

    def _received(self, rpc: Any, began: float, trip: StreamTrip, call: Call) -> Reply[Any]:
        try:
            with call.watching(rpc):
                return self._collected(iter(rpc), began, trip, call)
        finally:
            # Ends the call on the worker too, unless it has ended.
            rpc.cancel()

    def _collected(self, frames: Iterator[Frame[Any]], began: float, trip: StreamTrip, call: Call) -> Reply[Any]:
        """Reads a stream into one buffer, which is allocated when the header with its length arrives."""
        first = next(frames, None)
        if first is None or first.message is None:
            raise ProtocolError("reply", "a header first", "nothing" if first is None else "data")
        header = first.message
        timings = timings_pb2.Timings()
        messages: list[Any] = [header]
        assembler = PayloadAssembler(header.payload_bytes, REPLY_LIMIT_BYTES, self._buffers.lend)
        payload = collect(first, frames, assembler, messages.append)
        for message in messages:
            if hasattr(message, "timings"):
                timings.MergeFrom(message.timings)
        reader = trip.reader(header, payload)
        call.trace.note_payload(received_bytes=payload.nbytes + trip.received_bytes)
        self._lanes.note(header.payload_bytes)
        return Reply(header, reader, Timings.of(timings, (time.perf_counter() - began) * 1e3))

    def _lane_offer(self, call: Call, seconds: float) -> Any:
        try:
            return self._reply(self.worker.OpenLane, worker_pb2.OpenLaneRequest(), seconds, call)
        except grpc.RpcError as error:
            raise exception_of(error, self.target, seconds) from error
