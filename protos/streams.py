"""A header and its payload <-> the frames of a stream, the same way for requests and replies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import TypeVar

from google.protobuf.message import Message

from lumigrad.protos.chunks import SHORT_BYTES, PayloadAssembler, split
from lumigrad.protos.errors import ProtocolError
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.protos.wire import Frame

M = TypeVar("M", bound=Message)


def fits_message(header: Message, payload: PayloadWriter, message_bytes: int = SHORT_BYTES) -> bool:
    """Whether a payload may travel with its header in a message of about `message_bytes`."""
    if payload.length <= SHORT_BYTES:
        return payload.length <= message_bytes
    return payload.length + header.ByteSize() <= message_bytes


def whole_frame(header: M, payload: PayloadWriter) -> Frame[M]:
    """Set the header's `payload_bytes`; return a frame with the whole payload."""
    header.payload_bytes = payload.length  # type: ignore[attr-defined]
    buffers = [*payload.buffers, *payload.later]
    return Frame(header, buffers[0] if len(buffers) == 1 else memoryview(b"".join(buffers)))


def frames_of(header: M, payload: PayloadWriter) -> Iterator[Frame[M]]:
    """Set the header's `payload_bytes` and cut the payload; a short one travels with the header."""
    if fits_message(header, payload):
        yield whole_frame(header, payload)
    else:
        yield from chunked_frames(header, payload)


def chunked_frames(header: M, payload: PayloadWriter) -> Iterator[Frame[M]]:
    """Set the header's `payload_bytes` and cut the payload, which follows the header."""
    header.payload_bytes = payload.length  # type: ignore[attr-defined]
    yield Frame(header)
    for chunk in split(chain(payload.buffers, payload.later)):
        yield Frame(None, chunk)


def collect(
    first: Frame[M],
    rest: Iterator[Frame[M]],
    assembler: PayloadAssembler,
    on_message: Callable[[M], None],
) -> memoryview:
    """Return the payload of a stream whose header was read already.

    `on_message` gets the fields of each later message that has more than data.
    """
    assembler.add(first.data)
    for frame in rest:
        if frame.message is not None:
            on_message(frame.message)
        assembler.add(frame.data)
    return assembler.finish()


def whole_payload(only: Frame[M], allocate: Callable[[int], memoryview]) -> memoryview:
    """Copy the payload of a reply that is one frame into memory of its own."""
    length = only.message.payload_bytes  # type: ignore[union-attr]
    if only.data.nbytes != length:
        raise ProtocolError("data", f"payload_bytes = {length} bytes in all", only.data.nbytes)
    if length <= SHORT_BYTES:
        return memoryview(bytearray(only.data))
    payload = allocate(length)
    payload[:] = only.data
    return payload


def collect_until_full(
    first: Frame[M],
    rest: Iterator[Frame[M]],
    assembler: PayloadAssembler,
    on_message: Callable[[M], None] = lambda message: None,
) -> memoryview:
    """Like `collect`, for a stream that continues after the payload, with the next header or its end."""
    assembler.add(first.data)
    while not assembler.is_full and (frame := next(rest, None)) is not None:
        if frame.message is not None:
            on_message(frame.message)
        assembler.add(frame.data)
    return assembler.finish()
