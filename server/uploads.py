"""The receiving end of a stream: its header, checked first, then its payload in one buffer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message

from lumigrad.protos.chunks import PayloadAssembler
from lumigrad.protos.tensors import PayloadReader
from lumigrad.protos.wire import Frame
from lumigrad.server.call import Call
from lumigrad.server.errors import InvalidArgumentError
from lumigrad.server.transit import Transit

M = TypeVar("M", bound=Message)


class Receiver(Generic[M]):
    """Reads one stream in two steps, so that the header can be refused before memory is taken for the payload."""

    def __init__(self, frames: Iterator[Frame[M]], call: Call) -> None:
        """Wait for the header."""
        self._frames = frames
        self._call = call
        first = next(frames, None)
        call.times.restart()
        if first is None or first.message is None:
            raise InvalidArgumentError("stream", "a header first", "nothing" if first is None else "data")
        self._first = first
        self.header: M = first.message

    def length(self, limit_bytes: int) -> int:
        """Of the payload, as the header has it; no more than it may be, which `payload` sees to."""
        length: int = self.header.payload_bytes  # type: ignore[attr-defined]
        return min(length, limit_bytes)

    def payload(self, limit_bytes: int, transit: Transit) -> PayloadReader:
        """Wait for as many bytes as the header says."""
        length: int = self.header.payload_bytes  # type: ignore[attr-defined]
        assembler = PayloadAssembler(length, limit_bytes, transit.allocator(self._call))
        assembler.add(self._first.data)
        while not assembler.is_full:
            frame = next(self._frames, None)
            if frame is None:
                break
            _refuse_fields(frame)
            assembler.add(frame.data)
        self._call.receiving.restart()
        return self._call.lane.reader(assembler.finish(), limit_bytes - length, transit.allocator(self._call))

    def expect_end(self) -> None:
        """Refuse a stream that goes on after its payload.

        The end of a stream is a message of its own: looked at after the work, it costs no wait.
        """
        for frame in self._frames:
            _refuse_fields(frame)
            if frame.data.nbytes:
                length: int = self.header.payload_bytes  # type: ignore[attr-defined]
                raise InvalidArgumentError("data", f"payload_bytes = {length} bytes in all", "more")


def _refuse_fields(frame: Frame[Any]) -> None:
    if frame.message is not None and frame.message.ListFields():
        name = frame.message.ListFields()[0][0].name
        raise InvalidArgumentError(name, "only data after the header", "a second header")
