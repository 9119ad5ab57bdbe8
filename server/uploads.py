"""The receiving end of a stream: its header, checked first, then its payload in one buffer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message
from lumigrad.protos.chunks import PayloadAssembler
from lumigrad.protos.streams import collect
from lumigrad.protos.tensors import PayloadReader
from lumigrad.protos.wire import Frame
from lumigrad.server.call import Call
from lumigrad.server.errors import InvalidArgumentError

M = TypeVar("M", bound=Message)


class Receiver(Generic[M]):
    """Reads one stream in two steps, so that the header can be refused before memory is taken for the payload."""

    def __init__(self, frames: Iterator[Frame[M]], call: Call) -> None:
        """Wait for the header."""
        self._frames = frames
        first = next(frames, None)
        call.times.restart()
        if first is None or first.message is None:
            raise InvalidArgumentError("stream", "a header first", "nothing" if first is None else "data")
        self._first = first
        self.header: M = first.message

    def payload(self, limit_bytes: int, allocate: Callable[[int], memoryview]) -> PayloadReader:
        """Wait for the rest."""
        length: int = self.header.payload_bytes  # type: ignore[attr-defined]
        assembler = PayloadAssembler(length, limit_bytes, allocate)
        return PayloadReader(collect(self._first, self._frames, assembler, _refuse))


def _refuse(message: Any) -> None:
    if message.ListFields():
        name = message.ListFields()[0][0].name
        raise InvalidArgumentError(name, "only data after the header", "a second header")
