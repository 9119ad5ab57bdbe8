"""Calls to one worker: deadlines, retries, payload streams and typed exceptions. Knows no scene or camera."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import grpc
from google.protobuf.message import Message

from lumigrad.client.base.timings import Timings
from lumigrad.client.errors import Cancelled, Internal, LaneLost, LumigradError
from lumigrad.client.transport import affinity, cancellation, tracing
from lumigrad.client.transport.access import Access
from lumigrad.client.transport.addresses import Address
from lumigrad.client.transport.channel import open_channel
from lumigrad.client.transport.lanes import Lanes, StreamTrip
from lumigrad.client.transport.retry import Deadline, retry_unavailable
from lumigrad.client.transport.status import exception_of
from lumigrad.protos.buffers import PayloadBuffers
from lumigrad.protos.chunks import SHORT_BYTES, PayloadAssembler
from lumigrad.protos.errors import ProtocolError
from lumigrad.protos.service import (
    DISTANCE_SERVICE,
    RENDER_SERVICE,
    SCENE_SERVICE,
    TRAINING_SERVICE,
    WORKER_SERVICE,
    Stub,
)
from lumigrad.protos.streams import collect, frames_of
from lumigrad.protos.tensors import PayloadReader, PayloadWriter
from lumigrad.protos.wire import Frame
from lumigrad.v1 import timings_pb2, worker_pb2

M = TypeVar("M", bound=Message)
T = TypeVar("T")

# Makes the header of a request and appends the tensors to the payload; called anew for each attempt.
Build = Callable[[PayloadWriter], Message]

# No reply can be as long; a header that says so is broken.
_REPLY_LIMIT_BYTES = 1 << 36
# Memory of replies that is kept for the next ones. What is smaller the C library keeps by itself.
_LEAST_KEPT_BYTES = 32 << 20
_MOST_KEPT_BYTES = 512 << 20

# Of a call whose answer nobody waits for.
_TELL_S = 5.0
_FORKED = (
    "this process was forked from one that had calls under way, as a client of several workers always has, or a "
    'trainer; gRPC does not survive that. Fork before the client is used, or start processes by "spawn"'
)
# In a child of a fork, connections of the parent: gRPC must not even take them apart there.
_LEFT: list[Connection] = []

_Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Reply(Generic[M]):
    """A streamed reply, complete.

    Attributes:
        header: its first message.
        reader: views the tensors of the header in memory that belongs to this reply.
        timings: of the call; empty where the service reports none.
    """

    header: M
    reader: PayloadReader
    timings: Timings


class Connection:
    """One channel. Safe to use from several threads."""

    def __init__(self, address: Address, access: Access) -> None:
        """Sets up, without connecting."""
        self.target = address.target
        self._timeout_s = access.timeout_s
        self._retry_s = access.retry_s
        self._metadata = access.metadata
        self.channel = open_channel(address, access.credentials, access.keepalive_s)
        self._closed = self._is_parents = False
        self.render = Stub(self.channel, RENDER_SERVICE)
        self.distances = Stub(self.channel, DISTANCE_SERVICE)
        self.scenes = Stub(self.channel, SCENE_SERVICE)
        self.training = Stub(self.channel, TRAINING_SERVICE)
        self.worker = Stub(self.channel, WORKER_SERVICE)
        self._buffers = PayloadBuffers(_LEAST_KEPT_BYTES, _MOST_KEPT_BYTES)
        self._lanes = Lanes(access.lane, self.target, self._lane_offer)

    @property
    def _told(self) -> _Metadata:
        return (*self._metadata, *affinity.metadata(), *tracing.metadata())

    def close(self) -> None:
        """Ends the channel; calls in flight are cancelled."""
        self._closed = True
        self._lanes.close()
        self.channel.close()

    def abandon(self) -> None:
        """In a child of a fork: leaves everything to the parent."""
        self._is_parents = True
        _LEFT.append(self)

    @property
    def lane(self) -> str:
        """How large payloads travel, "shared" or "stream"."""
        return self._lanes.kind(Deadline(self._timeout_s))

    def unary(self, method: Any, request: Message, deadline: Deadline) -> Any:
        """One message there, one back."""
        return self._repeat(lambda left: self._reply(method, request, left), deadline)

    def remove(self, method: Any, request: Message, deadline: Deadline, missing: type[LumigradError]) -> None:
        """One message there that takes something away; what a repetition finds `missing` has gone as it should."""
        attempts = 0

        def attempt(left: float) -> Any:
            nonlocal attempts
            attempts += 1
            return self._reply(method, request, left)

        try:
            self._repeat(attempt, deadline)
        except missing:
            if attempts == 1:
                raise

    def tell(self, method: Any, request: Message) -> None:
        """One message there; whether it arrives does not matter."""
        # A ValueError is gRPC's way to say that the channel is closed.
        with suppress(grpc.RpcError, ValueError):
            method(request, timeout=_TELL_S, metadata=self._told)

    def open_stream(self, method: Any, frames: Iterator[Frame[Any]]) -> Any:
        """A call both ways that lasts until it is cancelled, or breaks; gRPC's own object."""
        self._check()
        return method(frames, metadata=self._told)

    def upload(self, method: Any, build: Build, deadline: Deadline) -> Any:
        """A header and its payload there, one message back."""

        def send(trip: StreamTrip, left: float) -> Any:
            start, frames, metadata = self._sent(method, build(trip.payload), trip)
            return cancellation.reply_of(start, frames, timeout=left, metadata=metadata)

        return self._travel(send, deadline)

    def download(self, method: Any, request: Message, deadline: Deadline) -> Reply[Any]:
        """One message there, a header and its payload back."""

        def send(trip: StreamTrip, left: float) -> Reply[Any]:
            metadata = self._told + trip.metadata
            return _receive(lambda: method(request, timeout=left, metadata=metadata), trip, self._buffers)

        return self._travel(send, deadline)

    def exchange(self, method: Any, build: Build, deadline: Deadline) -> Reply[Any]:
        """A header and its payload there, the same back."""

        def send(trip: StreamTrip, left: float) -> Reply[Any]:
            header = build(trip.payload)
            start, frames, metadata = self._sent(method, header, trip)
            return _receive(lambda: start(frames, timeout=left, metadata=metadata), trip, self._buffers)

        return self._travel(send, deadline)

    def _reply(self, method: Any, request: Message, timeout_s: float) -> Any:
        return cancellation.reply_of(method, request, timeout=timeout_s, metadata=self._told)

    def _sent(self, method: Any, header: Message, trip: StreamTrip) -> tuple[Any, Any, _Metadata]:
        """What to call, with what and which metadata."""
        tracing.note_payload(sent_bytes=trip.payload.length + trip.payload.lane_bytes)
        frames, metadata = frames_of(header, trip.payload), self._told + trip.metadata
        return (
            (method.single, next(frames), metadata)
            if trip.payload.length <= SHORT_BYTES
            else (method, frames, metadata)
        )

    def _travel(self, send: Callable[[StreamTrip, float], T], deadline: Deadline) -> T:
        """Makes a call whose payloads may be large; by the stream if the worker does not know the lane any more."""

        def attempt(left: float, *, by_stream: bool = False) -> T:
            trip = self._lanes.trip(deadline, by_stream=by_stream)
            try:
                reply = send(trip, left)
            except BaseException:
                trip.end(succeeded=False)
                raise
            trip.end(succeeded=True)
            self._lanes.note(trip.payload.length)
            if isinstance(reply, Reply):
                self._lanes.note(reply.header.payload_bytes)
            return reply

        try:
            return self._repeat(attempt, deadline)
        except LaneLost:
            return self._repeat(lambda left: attempt(left, by_stream=True), deadline)

    @property
    def is_parents(self) -> bool:
        """Whether this is a child of a fork, and the connection its parent's."""
        return self._is_parents

    def check_own(self) -> None:
        """Raises if this is a child of a fork, and the connection its parent's."""
        if self._is_parents:
            raise LumigradError(_FORKED)

    def _check(self) -> None:
        """Raises if there should be no other call."""
        cancellation.check()
        self.check_own()
        if self._closed:
            raise LumigradError("this client is closed; make a new one")

    def _lane_offer(self, seconds: float) -> Any:
        try:
            return self._reply(self.worker.OpenLane, worker_pb2.OpenLaneRequest(), seconds)
        except grpc.RpcError as error:
            raise exception_of(error, self.target, seconds) from error

    def _repeat(self, call: Callable[[float], T], deadline: Deadline) -> T:
        """Every call here is safe to repeat: results depend on the request alone, and each Update has an id.

        So nothing is ever changed twice.
        """
        return retry_unavailable(lambda: self._attempt(call, deadline), deadline, self._retry_s)

    def _attempt(self, call: Callable[[float], T], deadline: Deadline) -> T:
        self._check()
        left = deadline.remaining_s()
        tracing.note_call(self.target)
        try:
            return call(left)
        except grpc.RpcError as error:
            # Whoever stops waiting, or closes the client, has cancelled the call.
            cancellation.check()
            if self._closed:
                raise Cancelled(f"the client was closed during a call to {self.target}") from error
            raise exception_of(error, self.target, deadline.timeout_s) from error
        except ProtocolError as error:
            raise Internal(f"the worker at {self.target} broke the contract: {error}") from error


def _receive(start: Callable[[], Any], trip: StreamTrip, buffers: PayloadBuffers) -> Reply[Any]:
    """Reads a stream into one buffer that is lent when the header says how long it is."""
    began = time.perf_counter()
    call = start()
    try:
        with cancellation.watching(call):
            frames: Iterator[Frame[Any]] = iter(call)
            first = next(frames, None)
            if first is None or first.message is None:
                raise ProtocolError("reply", "a header first", "nothing" if first is None else "data")
            header = first.message
            timings = timings_pb2.Timings()
            messages: list[Any] = [header]
            assembler = PayloadAssembler(header.payload_bytes, _REPLY_LIMIT_BYTES, buffers.lend)
            payload = collect(first, frames, assembler, messages.append)
    finally:
        # Has no effect on a call that is over; otherwise the worker need not go on.
        call.cancel()
    for message in messages:
        if hasattr(message, "timings"):
            timings.MergeFrom(message.timings)
    reader = trip.reader(header, payload)
    tracing.note_payload(received_bytes=payload.nbytes + trip.received_bytes)
    return Reply(header, reader, Timings.of(timings, (time.perf_counter() - began) * 1e3))
