"""The frames of a RenderStream: their requests, their work, each as a call of its own, and their replies."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

from lumigrad.kernels._native import FrameLine
from lumigrad.protos import details
from lumigrad.protos.frame_stream import BASE_BYTES, FrameBase, Pieces, frame_reply, is_base
from lumigrad.protos.wire import parse
from lumigrad.server.core.call import REQUEST_ID, Call, Caller
from lumigrad.server.core.errors import InvalidArgumentError, StoppingError
from lumigrad.server.core.limits import require
from lumigrad.server.rpc.handler import CallHandler
from lumigrad.server.rpc.request_check import RequestCheck
from lumigrad.server.rpc.status import answer_to
from lumigrad.v1 import render_pb2

METHOD = "RenderService.RenderFrame"
# Renders a RenderRequest, given as bytes; yields the messages of its RenderReply, the first once it is rendered.
Render = Callable[[bytes, Call], Iterator[Pieces]]

_KIND: Any = render_pb2.FrameRequest.DESCRIPTOR
# Requests up to this length may be parsed before they are checked.
_SHORT_BYTES = 256
# The number of characters that a frame's request id takes from its stream's.
_ID_CHARACTERS = 43


class FrameCall(Call):
    """The call of one frame. Cancelling it ends only this frame of the stream."""

    def cancel(self, why: str) -> None:
        """Cancel the call: it leaves the device's queue, or stops on the device."""
        super().cancel(why)
        self.end()


class Frame:
    """A frame of a stream, from its request to the last byte of its reply."""

    def __init__(self, number: int, call: FrameCall, *, may_be_skipped: bool, is_pipelined: bool) -> None:
        """Create a frame that has not begun."""
        self.number = number
        self.call = call
        self.may_be_skipped = may_be_skipped
        # Whether further requests are to be read during its work.
        self.is_pipelined = is_pipelined or may_be_skipped
        # The bytes of a RenderRequest, or the reason why it is not rendered.
        self.request: bytes | Exception = b""
        # Whether later requests may build on it.
        self.is_base = False
        self.is_skipped = False
        # Whether the reply, or the error, is known.
        self.is_done = False
        self._replies: Iterator[Pieces] = iter(())
        self._first: bytes | None = None
        self._error: BaseException | None = None

    @property
    def waits(self) -> bool:
        """Whether the device has not begun its work."""
        return not self.is_done and not self.call.has_reached_device

    @property
    def is_refused(self) -> bool:
        """Whether the worker is stopping, so that the frame has to be rendered elsewhere."""
        return isinstance(self._error, StoppingError)

    def skip(self) -> None:
        """Remove the frame from the device's queue, because a newer frame has arrived."""
        self.is_skipped = True
        self.call.cancel("a newer frame of the stream took its place")

    def work(self, handler: CallHandler, whole: Call, render: Render) -> None:
        """Render the frame; errors are kept for the reply."""
        try:
            handler.enter_part(self.call, whole)
            self.call.check()
            if isinstance(self.request, Exception):
                raise self.request
            self._replies = render(self.request, self.call)
            self._first = frame_reply(self.number, next(self._replies))
        except BaseException as error:
            self._error = error

    def send(self, handler: CallHandler, send: Callable[[bytes], bool]) -> None:
        """Send the reply, and end the call. The function `send` returns False once the stream has ended."""
        answer = None
        if self._error is not None:
            # If the call has ended meanwhile, the reason for its end takes precedence.
            answer = answer_to(self.call.ended() or self._error, self.call.record.request_id)
        # Recorded before the reply is sent, so that whoever has the reply finds the call in the metrics.
        handler.leave(self.call, answer, self._error)
        try:
            if self.is_skipped:
                return
            if answer is not None:
                status = details.status_of(answer.code.value[0], answer.text, answer.details)
                send(render_pb2.FrameReply(number=self.number, status=status).SerializeToString())
            elif (
                self._first is not None
                and send(self._first)
                and all(send(frame_reply(self.number, more)) for more in self._replies)
            ):
                return
        finally:
            # Closing an incomplete reply releases what it announced, such as a retained state.
            getattr(self._replies, "close", lambda: None)()
            self._error = self._first = None
            self.call.end()


def frame_id(whole: Call, number: int | str) -> str:
    """Return the request id of a frame of a stream."""
    return f"{whole.record.request_id[:_ID_CHARACTERS]}.{number}"


class FrameRequests:
    """Reads the requests of one stream, each of which may build on earlier requests."""

    def __init__(self, check: RequestCheck, whole: Call, line: FrameLine) -> None:
        self._check = check
        self._whole = whole
        self._line = line
        # The last request with a `render`, and the part of it that requests without one build on.
        self._last: render_pb2.RenderRequest | None = None
        self._base: FrameBase | None = None

    def read(self, raw: bytes, caller: Caller) -> Frame:
        """Return the frame of a request; `caller` waits for its reply.

        Raises ProtocolError or InvalidArgumentError if the request does not even identify a frame.
        """
        request = self._parsed(raw)
        last = -1 if self._line.number is None else self._line.number
        require(request.number > last, "number", f"more than {last}", request.number)
        self._line.number = request.number
        deadline = time.monotonic() + (request.timeout_ms / 1e3 or math.inf)
        return self._frame(request, caller, min(self._whole.deadline, deadline))

    def again(self, raw: bytes, caller: Caller, deadline: float) -> Frame:
        """Return the frame of a request with only cameras that was read before, if no `render` has arrived since."""
        return self._frame(parse(render_pb2.FrameRequest, raw), caller, deadline)

    def _frame(self, request: render_pb2.FrameRequest, caller: Caller, deadline: float) -> Frame:
        whole = self._whole
        metadata = [(REQUEST_ID, frame_id(whole, request.number)), *whole.record.trace_parent.items()]
        call = FrameCall(METHOD, caller, metadata, deadline=deadline, is_traced=whole.times.spans is not None)
        call.lane_name = request.lane
        frame = Frame(request.number, call, may_be_skipped=request.latest_only, is_pipelined=request.pipelined)
        frame.is_base = request.HasField("render")
        try:
            frame.request = self._render_request(request)
        except InvalidArgumentError as error:
            frame.request = error
        return frame

    def _parsed(self, raw: bytes) -> render_pb2.FrameRequest:
        """Check the bounds of a request, and parse it. Short requests with one camera exceed none and are fast."""
        if len(raw) <= _SHORT_BYTES:
            request = parse(render_pb2.FrameRequest, raw)
            if not request.HasField("render") and len(request.cameras) <= 1:
                return request
        try:
            self._check.check(_KIND, raw, lambda: self._whole.turn.take(self._whole.check))
        except InvalidArgumentError as error:
            raise InvalidArgumentError(error.field.removeprefix("render."), error.limit, error.value) from None
        return parse(render_pb2.FrameRequest, raw)

    def _render_request(self, request: render_pb2.FrameRequest) -> bytes:
        if request.HasField("render"):
            require(not request.cameras, "cameras", "none beside render", len(request.cameras))
            self._last, self._base = request.render if is_base(request.render) else None, None
            return request.render.SerializeToString()
        if self._last is not None:
            self._base, self._last = FrameBase.of(self._last), None
        if self._base is None:
            limit = f"one, since the last was not of a stored scene alone, in at most {BASE_BYTES >> 10} KiB"
            raise InvalidArgumentError("render", limit, "none")
        return self._base.request(request.cameras)
