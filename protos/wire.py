"""A hand-written codec of streamed messages: what protobuf would write and read, without copying the field `data`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from lumigrad.protos.chunks import SHORT_BYTES
from lumigrad.protos.errors import ProtocolError

M = TypeVar("M", bound=Message)

_VARINT, _LENGTH_DELIMITED = 0, 2
# Kinds of fields of fixed lengths in bytes.
_FIXED = {1: 8, 5: 4}
_MAX_VARINT_BYTES = 10
# A varint of this many bytes can hold the length of any message.
_MAX_LENGTH_BYTES = 5


@dataclass(slots=True)
class Frame(Generic[M]):
    """A message of a stream: its fields without `data`, and `data` separately.

    Chunks after the first hold nothing but data: their `message` is None.
    """

    message: M | None = None
    data: memoryview = field(default_factory=lambda: memoryview(b""))


class FrameCodec(Generic[M]):
    """Frames <-> bytes, for one message type with a field `bytes data`."""

    def __init__(self, message_type: type[M]) -> None:
        self._message_type = message_type
        self._number = message_type.DESCRIPTOR.fields_by_name["data"].number
        self._tag = varint(self._number << 3 | _LENGTH_DELIMITED)

    def serialize(self, frame: Frame[M]) -> bytes:
        """Return the bytes that protobuf would write for the message; data that is long, or alone, is copied once."""
        if frame.message is None:
            if not frame.data.nbytes:
                return b""
            return b"".join((self._tag, varint(frame.data.nbytes), frame.data))
        if not frame.data.nbytes:
            return frame.message.SerializeToString()
        if frame.data.nbytes > SHORT_BYTES:
            fields = frame.message.SerializeToString()
            # Protobuf writes fields in the order of their numbers.
            later = (start for number, start, _, _ in _fields(fields) if number > self._number)
            place = next(later, len(fields))
            return b"".join((fields[:place], self._tag, varint(frame.data.nbytes), frame.data, fields[place:]))
        whole = self._message_type()
        whole.CopyFrom(frame.message)
        whole.data = frame.data.tobytes()  # type: ignore[attr-defined]
        return whole.SerializeToString()

    def deserialize(self, raw: bytes) -> Frame[M]:
        """Return the frame of a message; a message that is all data becomes a view of `raw`."""
        if raw.startswith(self._tag) and (start := self._data_start(raw)) is not None:
            return Frame(None, memoryview(raw)[start:])
        if len(raw) > SHORT_BYTES and (frame := self._split(raw)) is not None:
            return frame
        message = parse(self._message_type, raw)
        data = memoryview(message.data)  # type: ignore[attr-defined]
        message.ClearField("data")
        return Frame(message, data)

    def _split(self, raw: bytes) -> Frame[M] | None:
        """Return the frame of a long message, with its data as a view of `raw`; None if protobuf has to parse it."""
        with suppress(ValueError, ProtocolError):
            found = [(start, value, end) for number, start, value, end in _fields(raw) if number == self._number]
            # If a field comes twice, the last one counts.
            if len(found) == 1 and raw.startswith(self._tag, found[0][0]):
                start, value, end = found[0]
                return Frame(parse(self._message_type, raw[:start] + raw[end:]), memoryview(raw)[value:end])
        return None

    def _data_start(self, raw: bytes) -> int | None:
        """Returns where the data starts, if the message, which begins with that field, is nothing else."""
        start = len(self._tag)
        length = 0
        for index, byte in enumerate(raw[start : start + _MAX_LENGTH_BYTES]):
            length |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                start += index + 1
                return start if start + length == len(raw) else None
        return None


def parse(message_type: type[M], raw: bytes) -> M:
    """Parse with protobuf; raises ProtocolError for malformed bytes."""
    try:
        return message_type.FromString(raw)
    except DecodeError:
        raise ProtocolError(
            message_type.DESCRIPTOR.name, "a well-formed message", f"{len(raw)} bytes that are not"
        ) from None


def is_framed(descriptor: Descriptor) -> bool:
    """Whether messages of this type carry a payload."""
    data = descriptor.fields_by_name.get("data")
    return data is not None and data.type == FieldDescriptor.TYPE_BYTES


def varint(value: int) -> bytes:
    """Return the bytes of a number as protobuf writes it."""
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _fields(raw: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield number, start, start of the value and end of each field; raises ValueError for a malformed message."""
    start, size = 0, len(raw)
    while start < size:
        key, value = _read_varint(raw, start)
        kind, end = key & 7, value
        if kind == _LENGTH_DELIMITED:
            length, value = _read_varint(raw, value)
            end = value + length
        elif kind == _VARINT:
            _, end = _read_varint(raw, value)
        elif kind in _FIXED:
            end = value + _FIXED[kind]
        else:
            raise ValueError(f"kind {kind} of a field")
        if end > size:
            raise ValueError("a field that is cut off")
        yield key >> 3, start, value, end
        start = end


def _read_varint(raw: bytes, start: int) -> tuple[int, int]:
    """Return a number and its end; raises ValueError if it is cut off or too long."""
    value = 0
    for index, byte in enumerate(raw[start : start + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, start + index + 1
    raise ValueError("a varint that does not end")
