"""One attempt of a call: its payload and that of its reply travel by a lane, or with the stream."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import numpy as np
from google.protobuf.message import Message

from lumigrad.client.lane import Lane, LaneFailed
from lumigrad.client.named_arrays import Array
from lumigrad.client.retry import Deadline
from lumigrad.protos.errors import ProtocolError
from lumigrad.protos.lane_tensors import LaneReader, LaneWriter, Room, part_of
from lumigrad.protos.tensors import PayloadReader, PayloadWriter
from lumigrad.v1 import tensor_pb2


class StreamTrip:
    """A call without a lane."""

    metadata: tuple[tuple[str, str], ...] = ()
    # That came by a lane.
    received_bytes = 0

    def __init__(self) -> None:
        self.payload = PayloadWriter()

    def reader(self, header: Message, payload: memoryview) -> PayloadReader:
        """Views the tensors of the reply."""
        return PayloadReader(payload)

    def end(self, *, succeeded: bool) -> None:
        """The call is over."""


class LaneTrip(StreamTrip):
    """A call whose large tensors travel by a lane."""

    def __init__(self, lane: Lane, deadline: Deadline) -> None:
        """Begins to hold what the reply will lie in."""
        self._lane = lane
        self._deadline = deadline
        self._reply = lane.hold()
        # Until it is known that there is nothing to give back, or who will.
        self._reply_is_open = True
        self._upload: int | None = None
        self.metadata = (lane.metadata(self._reply),)
        self.payload = LaneWriter(self._room)

    def reader(self, header: Message, payload: memoryview) -> PayloadReader:
        """Views the tensors of the reply; regions that it names are held as long as arrays of them live."""
        self._reply_is_open = False
        self.received_bytes = sum(tensor.region.length for tensor in _tensors(header) if tensor.HasField("region"))
        if not self.received_bytes:
            self._lane.let_go(self._reply)
            return PayloadReader(payload)
        hold = _Hold()
        weakref.finalize(hold, self._lane.release, self._reply).atexit = False

        def find(span: tensor_pb2.RegionSpan, field: str) -> Array:
            try:
                memory = self._lane.memory(span.region, self._deadline.remaining_s())
            except LaneFailed as error:
                raise ProtocolError(f"{field}.region", "a region of the lane", f"{span.region}: {error}") from error
            return np.asarray(_HeldBytes(part_of(memory, span, field), hold))

        return LaneReader(payload, find)

    def end(self, *, succeeded: bool) -> None:
        """Gives back what was leased for the upload, and for a reply that did not come."""
        if self._upload is not None:
            self._lane.release(self._upload)
        if self._reply_is_open and succeeded:
            self._lane.let_go(self._reply)
        elif self._reply_is_open:
            self._lane.release(self._reply)

    def _room(self, nbytes: int) -> Room | None:
        if self._upload is None:
            self._upload = self._lane.hold()
        try:
            return self._lane.room(self._upload, nbytes, self._deadline.remaining_s())
        except LaneFailed:
            return None


class _Hold:
    """What all arrays of a reply keep alive."""


class _HeldBytes:
    """Bytes as NumPy wants to hear of them; an array of them keeps this alive, and so the lease."""

    def __init__(self, memory: Array, hold: _Hold) -> None:
        self.__array_interface__ = memory.__array_interface__
        self._kept = memory, hold


def _tensors(message: Message) -> Iterator[tensor_pb2.Tensor]:
    """All tensors in a message."""
    if isinstance(message, tensor_pb2.Tensor):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if field.is_repeated else (value,):
                yield from _tensors(part)
