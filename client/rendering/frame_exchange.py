"""The RPC of a stream of frames: sends requests and receives their replies until the RPC breaks."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from lumigrad.client.errors import InvalidArgument, LaneLost, LumigradError, Unavailable
from lumigrad.client.rendering.request import RenderRequest, fill_around_cameras
from lumigrad.client.settings.image_format import format_messages
from lumigrad.client.transport.call import Call
from lumigrad.client.transport.connection import Reply
from lumigrad.client.transport.lanes import StreamTrip
from lumigrad.client.transport.status import exception_of_item
from lumigrad.client.wire.cameras import camera_message
from lumigrad.client.workers.worker import Kept, Worker
from lumigrad.protos.errors import ProtocolError
from lumigrad.protos.frame_stream import FRAME_BYTES, FrameAnswer, is_base
from lumigrad.protos.wire import Frame
from lumigrad.v1 import render_pb2, scene_pb2

# The longest time that a worker gets to end an RPC whose requests are all answered.
_END_S = 0.5


@dataclass(eq=False)
class Sent:
    """A requested frame.

    Attributes:
        call: its deadline, cancellation and trace.
        trip: the transport of its payloads; None: the frame is not in flight.
        began: when its request was last sent, as time.perf_counter().
    """

    number: int
    request: RenderRequest
    call: Call
    trip: StreamTrip | None = None
    began: float = field(default_factory=time.perf_counter)

    def end(self, *, succeeded: bool) -> None:
        """Releases the shared memory of the payloads, except for the arrays of a received reply."""
        trip, self.trip = self.trip, None
        if trip is not None:
            trip.end(succeeded=succeeded)


class FrameExchange:
    """One RPC, until it breaks or is closed. Large tensors travel through shared memory if the worker is local.

    Attributes:
        worker: the worker that answers.
        rpc: gRPC's call.
    """

    def __init__(self, worker: Worker, call: Call, *, retain: bool, latest_only: bool) -> None:
        """Starts the RPC of a call; `retain` and `latest_only` are as for `Client.stream`."""
        self.worker = worker
        self._connection = worker.connection
        self._affinity = call.affinity
        self._retain = retain
        self._latest_only = latest_only
        self._has_lanes = True
        # The last request that was sent in full, and its reference to the scene; later ones may send only cameras.
        self._base: tuple[RenderRequest, scene_pb2.SceneRef] | None = None
        self._outgoing: queue.SimpleQueue[render_pb2.FrameRequest | None] = queue.SimpleQueue()
        requests = iter(self._outgoing.get, None)
        self.rpc = self._connection.open_stream(self._connection.render.RenderStream, requests, call)
        worker.under_way += 1

    def send(self, sent: Sent, *, pipelined: bool) -> None:
        """Sends a request without waiting for the reply. `pipelined`: other frames are in flight."""
        connection = self._connection
        sent.trip = connection.lanes.trip(sent.call) if self._has_lanes else StreamTrip()
        message = render_pb2.FrameRequest(
            number=sent.number,
            timeout_ms=max(1, round(1e3 * sent.call.remaining_s())),
            latest_only=self._latest_only,
            pipelined=pipelined,
        )
        self._fill(message, sent.request, sent.trip)
        sent.trip.note_reply(sent.request.most_reply_bytes)
        message.lane = sent.trip.lane_name
        payload = sent.trip.payload
        sent.call.trace.note_payload(sent_bytes=payload.length + payload.lane_bytes)
        sent.began = time.perf_counter()
        self._outgoing.put(message)

    def receive(self) -> FrameAnswer:
        """Waits for the first message of the next reply.

        Raises:
            grpc.RpcError: the RPC broke.
            Unavailable: the worker ended it.
        """
        answer: FrameAnswer | None = next(self.rpc, None)
        if answer is not None:
            return answer
        raise Unavailable(f"the worker at {self.worker.target} ended the stream of frames")

    def reply(self, answer: FrameAnswer, sent: Sent) -> Reply[Any] | LumigradError:
        """Receives the rest of a frame's reply; returns it, or the frame's error."""
        if answer.status is not None:
            error = exception_of_item(answer.status, self.worker.target, sent.call.timeout_s)
            # The next request must be sent in full, and after LaneLost without lanes.
            self._base = None
            self._has_lanes = self._has_lanes and not isinstance(error, LaneLost)
            return error
        assert answer.reply is not None and sent.trip is not None
        missing = answer.reply.payload_bytes - answer.data.nbytes
        rest = self._chunks(sent.number, missing) if missing else None
        try:
            return self._connection.collected(Frame(answer.reply, answer.data), rest, sent.began, sent.trip, sent.call)
        except LaneLost as error:
            self._has_lanes = False
            return error

    def kept(self, context_id: str) -> Kept | None:
        """Returns the forward state of a reply, or None if the worker kept none."""
        release = self._connection.render.Release
        return Kept(context_id, release, self._affinity, self.worker) if context_id else None

    def close(self, *, is_answered: bool) -> None:
        """Ends the RPC; unless every request `is_answered`, this also cancels the work on the pending frames."""
        self._outgoing.put(None)
        has_ended = threading.Event()
        if is_answered and self.rpc.add_callback(has_ended.set):
            has_ended.wait(_END_S)
        self.rpc.cancel()
        self.worker.under_way -= 1

    def _chunks(self, number: int, missing: int) -> Iterator[Frame[Any]]:
        while missing > 0:
            answer = self.receive()
            if answer.number != number or not answer.data.nbytes:
                raise ProtocolError("data", f"{missing} more bytes of frame {number}", f"frame {answer.number}")
            missing -= answer.data.nbytes
            yield Frame(None, answer.data)

    def _fill(self, message: render_pb2.FrameRequest, request: RenderRequest, trip: StreamTrip) -> None:
        """Fills a message; if only the cameras differ from the last full request, it sends just those."""
        payload, stored = trip.payload, request.stored
        reference = None if stored is None else self.worker.store.reference(stored)
        cameras = [camera_message(camera, payload) for camera in request.cameras]
        has_payload = bool(payload.length or payload.lane_bytes)
        if self._base is not None and not has_payload and _is_alike(*self._base, request, reference):
            message.cameras.extend(cameras)
            return
        render = message.render
        render.retain = self._retain
        render.formats.extend(format_messages(request.image_formats, request.jpeg_quality))
        render.spec.cameras.extend(cameras)
        fill_around_cameras(render.spec, request, reference, payload)
        if payload.length > FRAME_BYTES:
            limit = f"at most {FRAME_BYTES >> 10} KiB of arrays for each frame"
            raise InvalidArgument.of("scene", f"expected {limit}, got {payload.length >> 10} KiB; put the scene first")
        render.payload_bytes, render.data = payload.length, b"".join(payload.buffers)
        self._base = (request, reference) if reference is not None and is_base(render) else None


def _is_alike(
    base: RenderRequest,
    base_reference: scene_pb2.SceneRef,
    request: RenderRequest,
    reference: scene_pb2.SceneRef | None,
) -> bool:
    """Whether two requests differ only in their cameras."""
    return (
        reference == base_reference
        and not request.tensors
        and request.look.spec == base.look.spec
        and request.image_formats == base.image_formats
        and request.jpeg_quality == base.jpeg_quality
    )
