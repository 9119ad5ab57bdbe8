"""Opens a client's shared-memory lanes, and sends the payloads of calls through them."""

from __future__ import annotations

import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Literal, get_args

import numpy as np
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from lumigrad.client.base.arguments import one_of
from lumigrad.client.base.arrays import Array
from lumigrad.client.errors import LaneLost, LumigradError, Unavailable
from lumigrad.client.transport.addresses import is_loopback
from lumigrad.client.transport.call import Call
from lumigrad.client.transport.lane import PATIENCE_S, Lane, LaneFailed
from lumigrad.protos.finalizers import finalize
from lumigrad.protos.lane_tensors import LEAST_BYTES, LaneReader, LaneWriter, LeasedRegion, part_of
from lumigrad.protos.lanes import address_of, pack_hello
from lumigrad.protos.tensors import PayloadReader, PayloadWriter
from lumigrad.v1 import tensor_pb2

# For a shorter reply, gRPC's copying takes less time than leasing shared memory.
_LEAST_REPLY_BYTES = 1 << 20


class StreamTrip:
    """One attempt of a call whose payload travels with the stream."""

    metadata: tuple[tuple[str, str], ...] = ()
    # Bytes of the reply that came through a lane.
    received_bytes = 0
    # Whether the reply fits into one message whatever its size, because its large tensors come through a lane.
    has_single_reply = False

    def __init__(self) -> None:
        self.payload = PayloadWriter()

    @property
    def lane_name(self) -> str:
        """The name of the lane and of the reply's lease; empty without a lane."""
        return next((name for _, name in self.metadata), "")

    def note_reply(self, most_bytes: float) -> None:
        """Notes the maximum length of the reply's payload, before the request is sent."""

    def reader(self, header: Message, payload: memoryview) -> PayloadReader:
        """Views the tensors of the reply."""
        return PayloadReader(payload)

    def end(self, *, succeeded: bool) -> None:
        """Ends the attempt."""


class LaneTrip(StreamTrip):
    """One attempt of a call whose large tensors travel through a lane."""

    def __init__(self, lane: Lane, call: Call) -> None:
        """Begins the lease of the reply's memory."""
        self._lane = lane
        self._reply = lane.hold()
        # True until the reply's lease is released or owned by its arrays.
        self._reply_is_open = True
        # The writer refers to this instead of the trip: a reference cycle would keep the payload until it is collected.
        self._upload = _Upload(lane, call)
        self.metadata = (lane.metadata(self._reply),)
        self.has_single_reply = lane.has_single_replies
        self.payload = LaneWriter(self._upload.lease_region)

    def note_reply(self, most_bytes: float) -> None:
        """Gives up the lane if neither the request nor the reply benefits from it."""
        if most_bytes < _LEAST_REPLY_BYTES and not self.payload.lane_bytes:
            self.metadata = ()
            self.has_single_reply = False

    def reader(self, header: Message, payload: memoryview) -> PayloadReader:
        """Views the tensors of the reply; its regions stay leased as long as arrays on them exist.

        Raises:
            LaneLost: this process cannot map a region, for instance because it may open no more files.
        """
        spans = [tensor.region for tensor in _tensors(header) if tensor.HasField("region")]
        try:
            regions = {span.region: self._lane.memory(span.region, PATIENCE_S) for span in spans}
        except LaneFailed as error:
            raise LaneLost(f"a reply in shared memory cannot be read: {error}") from error
        self._reply_is_open = False
        self.received_bytes = sum(span.length for span in spans)
        if not spans:
            self._lane.let_go(self._reply)
            return PayloadReader(payload)
        hold = _Hold()
        finalize(hold, self._lane.release, self._reply)

        def find(span: tensor_pb2.RegionSpan, field: str) -> Array:
            return np.asarray(_HeldBytes(part_of(regions[span.region], span, field), hold))

        return LaneReader(payload, find)

    def end(self, *, succeeded: bool) -> None:
        """Releases the upload's lease, and the reply's lease if no arrays of the reply own it."""
        self._upload.end()
        if self._reply_is_open and succeeded:
            self._lane.let_go(self._reply)
        elif self._reply_is_open:
            self._lane.release(self._reply)


class _Upload:
    """The lease of a request's memory, which begins with the first region."""

    def __init__(self, lane: Lane, call: Call) -> None:
        self._lane, self._call = lane, call
        # The number of the lease; None before it begins.
        self._number: int | None = None

    def lease_region(self, nbytes: int) -> LeasedRegion | None:
        """Leases a region of at least `nbytes`; returns None if none is free or the worker does not answer."""
        if self._number is None:
            self._number = self._lane.hold()
        try:
            return self._lane.lease_region(self._number, nbytes, self._call.remaining_s())
        except LaneFailed:
            return None

    def end(self) -> None:
        """Releases the lease."""
        if self._number is not None:
            self._lane.release(self._number)


class _Hold:
    """Kept alive by all arrays of a reply; its finalizer releases the lease."""


class _HeldBytes:
    """Memory with NumPy's array interface; arrays on it keep this object, and thereby the lease, alive."""

    def __init__(self, memory: Array, hold: _Hold) -> None:
        self.__array_interface__ = memory.__array_interface__
        self._kept = memory, hold


def _tensors(message: Message) -> Iterator[tensor_pb2.Tensor]:
    for field in _ways(message.DESCRIPTOR):
        value = getattr(message, field.name)
        if not field.is_repeated:
            value = (value,) if message.HasField(field.name) else ()
        for part in value:
            if isinstance(part, tensor_pb2.Tensor):
                yield part
            else:
                yield from _tensors(part)


@cache
def _ways(kind: Descriptor) -> tuple[FieldDescriptor, ...]:
    """Returns the fields that are or contain tensors, cached: a full search would double the time of a short reply."""
    nested = [field for field in kind.fields if field.message_type is not None]
    tensor = tensor_pb2.Tensor.DESCRIPTOR
    return tuple(field for field in nested if field.message_type == tensor or _ways(field.message_type))


LaneMode = Literal["auto", "stream", "shared"]

_FIRST_PAUSE_S = 1.0
_LARGEST_PAUSE_S = 60.0


class Lanes:
    """Opens a lane on first use, and a new one after the worker was restarted."""

    def __init__(self, mode: LaneMode, target: str, offer: Callable[[Call, float], Any]) -> None:
        """Stores the settings, without connecting.

        Args:
            mode: "auto": for workers at loopback addresses, once a payload is large; "shared": at once, with a warning
                if that fails; "stream": never.
            target: the worker's address.
            offer: requests an OpenLaneReply from the worker on behalf of a call, with a time-out in seconds.
        """
        one_of("lane", mode, get_args(LaneMode), quote='"')
        self._mode = mode
        self._target = target
        self._offer = offer
        self._may_open = mode == "shared" or (mode == "auto" and is_loopback(target))
        self._has_use = mode == "shared"
        self._lane: Lane | None = None
        self._lock = threading.Lock()
        self._pause_s = _FIRST_PAUSE_S
        self._not_before = 0.0

    def kind(self, call: Call) -> str:
        """Returns the transport of the next large payload: "shared" or "stream"."""
        self._has_use = True
        return "stream" if self._current(call) is None else "shared"

    def trip(self, call: Call) -> StreamTrip:
        """Begins an attempt of a call."""
        lane = self._current(call) if self._has_use else None
        return StreamTrip() if lane is None else LaneTrip(lane, call)

    def note(self, payload_bytes: int) -> None:
        """Notes how many bytes travelled with a stream; a large payload enables lanes for later calls."""
        self._has_use = self._has_use or payload_bytes >= LEAST_BYTES

    def close(self) -> None:
        """Stops the use of lanes. Arrays in a lane's memory stay valid."""
        self._may_open = False
        with self._lock:
            if self._lane is not None:
                self._lane.retire()
            self._lane = None

    def _current(self, call: Call) -> Lane | None:
        lane = self._lane
        if lane is not None and lane.is_alive:
            return lane
        if not self._may_open or time.monotonic() < self._not_before or not self._lock.acquire(blocking=False):
            # No lane may be opened now, or another thread is opening one. Do not wait for it.
            return None
        try:
            if self._lane is lane:
                if lane is not None:
                    lane.retire()
                self._lane = self._opened(call)
            return self._lane
        finally:
            self._lock.release()

    def _opened(self, call: Call) -> Lane | None:
        try:
            lane = _open(self._offer(call, min(PATIENCE_S, call.remaining_s())), call)
        except Unavailable:
            # No worker answers, so the call itself will fail too; the next worker may have a lane.
            return None
        except (LumigradError, LaneFailed, OSError) as error:
            self._not_before = time.monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, _LARGEST_PAUSE_S)
            if self._mode == "shared":
                warnings.warn(
                    f"no shared memory with the worker at {self._target} ({error}); payloads travel with the stream",
                    RuntimeWarning,
                    stacklevel=2,
                )
            return None
        self._pause_s = _FIRST_PAUSE_S
        return lane


def _open(offer: Any, call: Call) -> Lane:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        link.settimeout(min(PATIENCE_S, call.remaining_s()))
        link.connect(address_of(offer.socket))
        link.send(pack_hello(offer.token))
    except BaseException:
        link.close()
        raise
    lane = Lane(link, offer.token)
    try:
        lane.prove(offer.nonce, call.remaining_s())
    except BaseException:
        lane.retire()
        raise
    return lane
