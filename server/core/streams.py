"""Messages of a call: reads the header and payload of a request, and writes the messages of a reply."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any, Generic, TypeVar

import grpc
import numpy as np
from google.protobuf.message import Message

from lumigrad.protos import dtypes
from lumigrad.protos.chunks import PayloadAssembler
from lumigrad.protos.dtypes import Array
from lumigrad.protos.service import SINGLE_REPLY
from lumigrad.protos.streams import chunked_frames, collect_until_full, fits_message, whole_frame
from lumigrad.protos.tensors import PayloadReader, PayloadWriter
from lumigrad.protos.wire import Frame
from lumigrad.server.core.accounts import PayloadMemory
from lumigrad.server.core.call import Call
from lumigrad.server.core.errors import CancelledError, InvalidArgumentError, LaneLostError
from lumigrad.server.core.limits import require
from lumigrad.v1 import distance_pb2, render_pb2, tensor_pb2

M = TypeVar("M", bound=Message)


class Receiver(Generic[M]):
    """Reads one stream in two steps, so that the header can be rejected before memory is allocated for the payload."""

    def __init__(self, frames: Iterator[Frame[M]], call: Call) -> None:
        """Read the header; raises InvalidArgumentError if the stream does not begin with one."""
        self._frames = frames
        self._call = call
        first = next(frames, None)
        call.times.restart()
        if first is None or first.message is None:
            raise InvalidArgumentError("stream", "a header first", "nothing" if first is None else "data")
        self._first = first
        self.header: M = first.message
        self._length: int = first.message.payload_bytes  # type: ignore[attr-defined]

    def length(self, limit_bytes: int) -> int:
        """Return the payload's length according to the header, at most `limit_bytes`, which `payload` enforces."""
        return min(self._length, limit_bytes)

    def payload(self, limit_bytes: int, payload_memory: PayloadMemory) -> PayloadReader:
        """Read as many bytes as the header announces."""
        limit = f"at most {limit_bytes} bytes (the worker's --max-payload-mib)"
        require(self._length <= limit_bytes, "payload_bytes", limit, self._length)
        assembler = payload_memory.assembler(self._length, limit_bytes, self._call)
        payload = assembled(assembler, self._first, self._frames, "only data after the header", "a second header")
        self._call.progress.receiving.restart()
        self._call.turn.resume(self._call.check)
        return self._call.lane.reader(payload, limit_bytes - self._length, payload_memory.allocator(self._call))

    def stream(self) -> PayloadStream:
        """Return the payload as a stream of pieces. It may be larger than memory: the caller checks its length.

        The call's turn is given back, and the caller takes it for its work on each piece.
        """
        self._call.turn.give()
        return PayloadStream(self._pieces(), self._length)

    def _pieces(self) -> Iterator[memoryview]:
        yield self._first.data
        for frame in self._frames:
            _refuse_fields(frame.message, "only data after the header", "a second header")
            yield frame.data
        self._call.check()

    def expect_end(self) -> None:
        """Raise an InvalidArgumentError if the stream continues after its payload.

        The end of a stream is a separate message. Checking for it after the work costs no wait.
        """
        for frame in self._frames:
            _refuse_fields(frame.message, "only data after the header", "a second header")
            if frame.data.nbytes:
                raise InvalidArgumentError("data", f"payload_bytes = {self._length} bytes in all", "more")


class PayloadStream:
    """The bytes of a payload in order."""

    def __init__(self, pieces: Iterator[memoryview], length: int) -> None:
        """Read `length` bytes from pieces of any sizes."""
        self._pieces = pieces
        self._rest = memoryview(b"")
        self._length = length

    def fill(self, buffer: memoryview) -> memoryview:
        """Fill a buffer with the next bytes; returns it. Raises InvalidArgumentError if the stream ends first."""
        filled = 0
        while filled < buffer.nbytes:
            if not self._rest.nbytes:
                piece = next(self._pieces, None)
                if piece is None:
                    raise InvalidArgumentError("data", f"payload_bytes = {self._length} bytes in all", "fewer")
                self._rest = piece
            part = self._rest[: buffer.nbytes - filled]
            buffer[filled : filled + part.nbytes] = part
            self._rest = self._rest[part.nbytes :]
            filled += part.nbytes
        return buffer

    def expect_end(self) -> None:
        """Raise an InvalidArgumentError if bytes are left."""
        if self._rest.nbytes or any(piece.nbytes for piece in self._pieces):
            raise InvalidArgumentError("data", f"payload_bytes = {self._length} bytes in all", "more")


def assembled(
    assembler: PayloadAssembler, first: Frame[Any], frames: Iterator[Frame[Any]], limit: str, other: str
) -> memoryview:
    """Receive a whole payload; a frame with fields raises InvalidArgumentError (expected `limit`, got `other`)."""
    return collect_until_full(first, frames, assembler, lambda message: _refuse_fields(message, limit, other))


def _refuse_fields(message: Message | None, limit: str, other: str) -> None:
    if message is not None and message.ListFields():
        raise InvalidArgumentError(message.ListFields()[0][0].name, limit, other)


def only(requests: Iterator[Any], call: Call) -> Any:
    """Return the only request of a call, without waiting for the end of the stream."""
    for request in requests:
        return request
    # If the caller cancelled, that is the error to raise.
    call.check()
    raise InvalidArgumentError("stream", "one message", "none")


def first_reply(replies: Iterator[Any], call: Call) -> Any:
    """Return the reply of a call that must not have more than one."""
    with closing(replies):  # type: ignore[type-var]
        reply = next(replies)
        call.record.bytes_sent += reply.data.nbytes if isinstance(reply, Frame) else 0
        if next(replies, None) is not None:
            if call.lane_name:
                raise LaneLostError
            limit = f"a reply with at most {call.message_bytes} bytes of payload; call without this metadata"
            raise InvalidArgumentError(SINGLE_REPLY[0], limit, "a longer one")
    return reply


def messages(requests: Iterator[bytes], read: Callable[[bytes, Call], Any], call: Call) -> Iterator[Any]:
    """Yield the requests of a call, parsed by `read` in the call's thread."""
    progress = call.progress
    while (raw := next_message(requests, call)) is not None:
        progress.has_begun = True
        request = read(raw, call)
        if isinstance(request, Frame):
            call.record.bytes_received += request.data.nbytes
            progress.receiving.moved(request.data.nbytes)
        yield request


def next_message(requests: Iterator[bytes], call: Call) -> bytes | None:
    """Wait for the next request; None if the caller sends no more."""
    call.turn.give()
    with call.progress.receiving:
        try:
            return next(requests, None)
        except grpc.RpcError as error:
            # gRPC's error refers to itself and, through its traceback, keeps all objects of the call until garbage
            # collection.
            error.__traceback__ = None
    raise CancelledError


Forward = TypeVar("Forward", render_pb2.RenderReply, distance_pb2.QueryReply)
Backward = TypeVar("Backward", render_pb2.BackwardReply, distance_pb2.DistanceBackwardReply)
R = TypeVar(
    "R",
    render_pb2.RenderReply,
    render_pb2.RenderBatchReply,
    render_pb2.BackwardReply,
    distance_pb2.QueryReply,
    distance_pb2.DistanceBackwardReply,
)


def check_room(call: Call, reply_bytes: int) -> None:
    """Refuse a call before its work if its reply must be one message but is too long, and no lane has room for it."""
    if reply_bytes > call.most_payload_bytes:
        call.lane.check_room(reply_bytes)


def named_tensors(arrays: Mapping[str, Array], payload: PayloadWriter) -> list[tensor_pb2.NamedTensor]:
    """Append arrays to a payload."""
    return [named_tensor(name, array, payload) for name, array in arrays.items()]


def named_tensor(name: str, array: Array, payload: PayloadWriter) -> tensor_pb2.NamedTensor:
    """Append an array to a payload; uint16 arrays hold bfloat16 bits."""
    dtype = dtypes.BFLOAT16 if array.dtype == np.uint16 else None
    return tensor_pb2.NamedTensor(name=name, tensor=payload.add(array, dtype))


def timed(header: R, payload: PayloadWriter, expect_end: Callable[[], None], call: Call) -> Iterator[Frame[R]]:
    """Yield the frames of a reply; the last one carries the timings, which therefore exclude it.

    Calls `expect_end` to check that the request has ended: for a long reply, while its last chunk is being sent.
    """
    if fits_message(header, payload, call.message_bytes):
        if not call.has_single_reply:
            expect_end()
        header.timings.CopyFrom(call.times.message())
        yield whole_frame(header, payload)
        return
    with call.times.stage("encode"):
        yield from chunked_frames(header, payload)
    expect_end()
    yield Frame(type(header)(timings=call.times.message()))
