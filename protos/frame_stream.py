"""The messages of RenderStream <-> bytes, without copies of the renders and payloads in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from google.rpc import status_pb2

from lumigrad.protos.chunks import SHORT_BYTES, split
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.protos.wire import parse, varint
from lumigrad.v1 import camera_pb2, render_pb2

# Up to this length the payload travels in the first message of a frame's reply; gRPC allows 4 MiB for all of it.
FRAME_BYTES = 7 << 19
# The largest request that is kept as a base for requests with cameras alone.
BASE_BYTES = 256 << 10

_LENGTH_DELIMITED = 2
# Bytes of fixed-size values by wire type.
_FIXED = {1: 8, 5: 4}
_NUMBER = render_pb2.FrameReply.DESCRIPTOR.fields_by_name["number"].number << 3
_REPLY = render_pb2.FrameReply.DESCRIPTOR.fields_by_name["reply"].number << 3 | _LENGTH_DELIMITED
_DATA = render_pb2.RenderReply.DESCRIPTOR.fields_by_name["data"].number << 3 | _LENGTH_DELIMITED
_SPEC = render_pb2.RenderRequest.DESCRIPTOR.fields_by_name["spec"].number << 3 | _LENGTH_DELIMITED
_NUMBER_TAG, _REPLY_TAG, _SPEC_TAG = varint(_NUMBER), varint(_REPLY), varint(_SPEC)

# Bytes of a message, as several buffers one after the other.
Pieces = Sequence[bytes | memoryview]


def render_replies(header: render_pb2.RenderReply, payload: PayloadWriter) -> Iterator[Pieces]:
    """Yield the messages of a RenderReply: its header, with a payload of up to `FRAME_BYTES`, or chunks after it."""
    header.payload_bytes = payload.length
    head = header.SerializeToString()
    if payload.length <= FRAME_BYTES:
        yield (head, *_data(payload.buffers, payload.length)) if payload.length else (head,)
        return
    yield (head,)
    for chunk in split(payload.buffers):
        yield _data((chunk,), chunk.nbytes)


def frame_reply(number: int, reply: Pieces) -> bytes:
    """Return a FrameReply with one message of a RenderReply."""
    length = sum(map(len, reply))
    return b"".join((_NUMBER_TAG, varint(number), _REPLY_TAG, varint(length), *reply))


def _data(buffers: Sequence[memoryview], length: int) -> Pieces:
    return (varint(_DATA), varint(length), *buffers)


@dataclass(frozen=True)
class FrameAnswer:
    """Fields of a FrameReply; the `data` of its `reply` is separate."""

    number: int
    # Fields of the reply; None: the frame has a status instead.
    reply: render_pb2.RenderReply | None
    data: memoryview
    status: status_pb2.Status | None


def read_frame_reply(raw: bytes) -> FrameAnswer:
    """Parse a FrameReply; a long `data` is a view of `raw`."""
    found = _long_data(raw) if len(raw) > SHORT_BYTES else None
    if found is None:
        message = parse(render_pb2.FrameReply, raw)
        data = memoryview(message.reply.data)
        message.reply.ClearField("data")
    else:
        outer, inner, data = found
        message = parse(render_pb2.FrameReply, outer)
        message.reply.CopyFrom(parse(render_pb2.RenderReply, inner))
    is_error = message.HasField("status")
    return FrameAnswer(message.number, None if is_error else message.reply, data, message.status if is_error else None)


def _long_data(raw: bytes) -> tuple[bytes, bytes, memoryview] | None:
    """Return the bytes of a FrameReply without its reply, those of the reply without its data, and the data.

    Returns None if there is no data, or if the message is malformed.
    """
    try:
        reply = _field(raw, 0, len(raw), _REPLY)
        data = _field(raw, reply.start, reply.stop, _DATA)
    except (IndexError, ValueError):
        return None
    outer = raw[: reply.tag] + raw[reply.stop :]
    inner = raw[reply.start : data.tag] + raw[data.stop : reply.stop]
    return outer, inner, memoryview(raw)[data.start : data.stop]


class _Field(NamedTuple):
    # Offsets of the tag, and of the value's start and end.
    tag: int
    start: int
    stop: int


def _field(raw: bytes, position: int, stop: int, wanted: int) -> _Field:
    """Return the first field with a tag; raises ValueError if there is none, IndexError if the bytes end early."""
    while position < stop:
        begin = position
        tag, position = _read_varint(raw, position)
        kind = tag & 7
        value, position = _read_varint(raw, position) if kind in (0, _LENGTH_DELIMITED) else (0, position)
        end = position + (value if kind == _LENGTH_DELIMITED else _FIXED.get(kind, 0))
        if end > stop:
            raise IndexError
        if tag == wanted:
            return _Field(begin, position, end)
        position = end
    raise ValueError


def _read_varint(raw: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 64:
        byte = raw[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError


def is_base(request: render_pb2.RenderRequest) -> bool:
    """Whether later frames may follow up on a request with cameras alone."""
    spec = request.spec
    is_stored = spec.WhichOneof("source") == "scene_ref" and not spec.tensors and not request.payload_bytes
    return is_stored and request.ByteSize() <= BASE_BYTES


@dataclass(frozen=True)
class FrameBase:
    """The bytes of a RenderRequest around its cameras, which complete later frames."""

    # The fields of the spec before and after `cameras`, and those of the request after `spec`.
    before: bytes
    after: bytes
    rest: bytes

    @staticmethod
    def of(request: render_pb2.RenderRequest) -> FrameBase:
        """Take apart a request for which `is_base` is true."""
        spec = request.spec
        before = render_pb2.RenderSpec(scene_ref=spec.scene_ref)
        after, rest = render_pb2.RenderSpec(), render_pb2.RenderRequest()
        after.CopyFrom(spec)
        after.ClearField("cameras")
        after.ClearField("scene_ref")
        rest.CopyFrom(request)
        rest.ClearField("spec")
        return FrameBase(before.SerializeToString(), after.SerializeToString(), rest.SerializeToString())

    def request(self, cameras: Sequence[camera_pb2.Camera]) -> bytes:
        """Return the bytes of a RenderRequest with these cameras."""
        views = render_pb2.RenderSpec(cameras=cameras).SerializeToString()
        length = len(self.before) + len(views) + len(self.after)
        return b"".join((_SPEC_TAG, varint(length), self.before, views, self.after, self.rest))
