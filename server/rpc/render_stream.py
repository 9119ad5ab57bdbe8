"""RenderStream: many frames in one call, several at once, each with a status of its own."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import grpc

from lumigrad.kernels._native import Outcome, PreparedFrame
from lumigrad.server.core.call import Call
from lumigrad.server.core.errors import CancelledError, DeviceTimeError, StoppingError, UnauthenticatedError
from lumigrad.server.rpc.handler import TOKEN_SECONDS, CallHandler
from lumigrad.server.rpc.prepared_frames import PreparedFrames
from lumigrad.server.rpc.request_check import RequestCheck
from lumigrad.server.rpc.server import CallThreads
from lumigrad.server.rpc.stream_frames import Frame, FrameRequests, Render

METHOD = "RenderService.RenderStream"
# Sends a message, or the status for None; returns once gRPC has taken it.
Push = Callable[[bytes | None], None]

# The most frames of one stream that are worked on or wait to be sent.
_MOST_FRAMES = 4
# The limit for frames that a newer one may replace: more would only be older when they arrive.
_MOST_REPLACEABLE = 2
# How long a thread waits for further frames of a caller that does not wait for each reply.
_LINGER_SECONDS = 0.02


class RenderStreams:
    """The open streams of a worker.

    A stream that waits for a request takes a thread; no thread waits for earlier frames to be sent.
    """

    def __init__(
        self,
        handler: CallHandler,
        threads: CallThreads,
        check: RequestCheck,
        render: Render,
        prepared: Callable[[Call], PreparedFrames],
    ) -> None:
        """`threads` must have two threads for each stream, in addition to one for each place of a call.

        `prepared` creates the PreparedFrames of a stream's call.
        """
        self._handler = handler
        self._threads = threads
        self._check = check
        self._render = render
        self._prepared = prepared
        handler.count_frames = self._count
        # Open streams, with the time at which their tokens were last checked (monotonic clock).
        self._open: dict[_Stream, float] = {}

    def method(self) -> grpc.RpcMethodHandler:
        """Return the method for gRPC."""

        def begin(
            requests: Iterator[bytes], context: grpc.ServicerContext, send: Callable[[bytes | None], None]
        ) -> None:
            call = self._handler.begun(METHOD, context)
            try:
                self._handler.enter(call, context)
                self._handler.announce(call)
                call.check()
                prepared = self._prepared(call)
            except BaseException as error:
                self._handler.end_pushed(call, context, error)
                send(None)
                return
            read = FrameRequests(self._check, call, prepared.line)
            stream = _Stream(self._handler, self._threads, read, self._render, prepared, call, context, requests, send)
            self._open[stream] = time.monotonic()
            call.on_end(partial(self._forget, stream))
            stream.start()

        # Attributes that make gRPC call `begin` with `send`, which any thread may use, even after `begin` has returned.
        begin.experimental_non_blocking = True  # type: ignore[attr-defined]
        begin.experimental_thread_pool = None  # type: ignore[attr-defined]
        return grpc.stream_stream_rpc_method_handler(begin, None, None)

    def drain(self) -> None:
        """End each stream after the frames that it has begun, so that its client goes to another worker."""
        for stream in list(self._open):
            stream.finish(StoppingError())

    def check_tokens(self) -> None:
        """End the streams of callers whose tokens are no longer valid. Call it about once a second."""
        now = time.monotonic()
        for stream, checked in list(self._open.items()):
            if now - checked > TOKEN_SECONDS:
                self._open[stream] = now
                try:
                    self._handler.check_tenant(stream.call)
                except UnauthenticatedError as error:
                    stream.finish(error)
                if stream.call.has_ended:
                    self._open.pop(stream, None)

    def end_overlong(self) -> None:
        """End frames that wait for longer than a call may take. Call it about once a second."""
        for stream in list(self._open):
            stream.line.end_overlong(self._handler.patience.call_seconds)

    def _count(self) -> tuple[int, int]:
        lines = [stream.line for stream in list(self._open)]
        return sum(map(len, lines)), sum(line.started for line in lines)

    def _forget(self, stream: _Stream) -> None:
        self._open.pop(stream, None)


class _Stream:
    """A stream of frames. A thread reads a request, and works on it once another thread reads on."""

    def __init__(
        self,
        handler: CallHandler,
        threads: CallThreads,
        requests: FrameRequests,
        render: Render,
        prepared: PreparedFrames,
        call: Call,
        context: grpc.ServicerContext,
        raw: Iterator[bytes],
        send: Push,
    ) -> None:
        self.call = call
        self.context = context
        self._handler = handler
        self._threads = threads
        self._render = render
        self._raw = raw
        self.push = send
        self._requests = requests
        self._prepared = prepared
        # Frames that need no Python. Either they or other frames are in progress, never both.
        self.line = prepared.line
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        # Frames whose replies are not sent, in order; the last of them may be waiting to begin.
        self._frames: deque[Frame] = deque()
        self._waiting: deque[Frame] = deque()
        self._is_reading = True
        self._is_sending = False
        # Whether no further frame begins, and the error with which the stream then ends, or None.
        self._is_finishing = False
        self._error: BaseException | None = None
        self._is_over = False

    def start(self) -> None:
        """Begin to read."""
        self.call.on_end(partial(self._abandon, CancelledError()))
        self._threads.submit(self._read)

    def is_active(self) -> bool:
        """Return whether the caller still waits for replies."""
        return not self._is_over

    def cancel(self) -> None:
        """Do nothing: the end of one frame does not end the stream."""

    def finish(self, error: BaseException | None) -> None:
        """End the stream after the frames that have begun; the client repeats other frames elsewhere.

        Without an error, as at the end of the requests, all frames begin; an error may follow until they have.
        """
        with self._lock:
            if not self._is_finishing or self._error is None:
                self._is_finishing, self._error = True, error
                self.line.is_closed = True
                if error is not None:
                    for frame in self._waiting:
                        self._frames.remove(frame)
                    self._waiting.clear()
                self._changed.notify_all()
        # Another thread sends, because the calling thread must not wait for a client that takes no replies.
        self._threads.submit(self.send_due)

    def _read(self) -> None:
        """Read requests and work on each, until one is to be worked on while another thread reads on."""
        while (left := self._next()) is not None:
            if isinstance(left, PreparedFrame):
                self._render_again(left)
                continue
            # Earlier prepared frames must end before this one begins.
            self.line.wait_for_room(1)
            read = self._parsed(left)
            if read is None:
                return
            begun, goes_on = self._add(read)
            if begun is None and not goes_on:
                return
            if begun is not None and goes_on and begun.is_pipelined:
                self._threads.submit(self._read)
            if begun is not None:
                self._work(begun)
                if begun.is_pipelined or not goes_on:
                    return

    def _next(self) -> bytes | PreparedFrame | None:
        """Read until there is a request that needs Python, or a prepared frame that has failed; returns it.

        Otherwise tells the stream to end and returns None.
        """
        try:
            left = self.line.next(self._raw, self)
            if left is None:
                # There may be no further frame because the call has ended.
                self.call.check()
                self.finish(None)
            return left
        except grpc.RpcError as error:
            # gRPC's error refers to itself and, through its traceback, would keep all objects of the stream.
            error.__traceback__ = None
            self.finish(CancelledError())
        except BaseException as error:
            self.finish(error)
        return None

    def _parsed(self, raw: bytes) -> Frame | None:
        """Return the frame of a request; if it is invalid, tells the stream to end and returns None."""
        try:
            self.call.check()
            read = self._requests.read(raw, self)
        except BaseException as error:
            self.finish(error)
            return None
        self.call.turn.give()
        if read.is_base:
            self._prepared.forget()
        elif isinstance(read.request, bytes):
            self._prepared.learn(raw, read.request, has_lane=bool(read.call.lane_name))
        return read

    def prepared(self, lane_name: str) -> tuple[Any, ...] | None:
        """Wait until earlier frames of other kinds are sent; return the means of drawing a prepared frame, or None."""
        if self._frames:
            with self._changed:
                while self._frames and not self._is_finishing:
                    self._changed.wait()
        return self._prepared.current(lane_name)

    def send_others(self) -> None:
        """Send the replies of prepared frames on another thread, while this thread reads."""
        self._threads.submit(self._send_prepared)

    def _send_prepared(self) -> None:
        while True:
            try:
                failed = self.line.send(self, _LINGER_SECONDS)
            except BaseException as error:
                # The worker itself failed, so later frames must not wait for this one.
                self.finish(error)
                continue
            if failed is None:
                return
            self._render_again(failed)

    def _render_again(self, failed: PreparedFrame) -> None:
        """Render a prepared frame that has failed on the general path, and send its reply."""
        again = self._requests.again(failed.raw, self, failed.deadline)
        why = self._why_ended(failed)
        if why is not None:
            again.request = why
        with self._lock:
            self._frames.append(again)
        try:
            self._work_on(again)
            again.is_skipped = failed.number >= self.line.refused_from
            again.send(self._handler, self._send)
        except BaseException as error:
            self._abandon(error)
        finally:
            with self._changed:
                self._frames.remove(again)
                self._changed.notify_all()
            self.line.remove(self)

    def _why_ended(self, frame: PreparedFrame) -> Exception | None:
        """Return why a frame must not be rendered again; None if it may be."""
        if self._is_over:
            return CancelledError("the stream was cancelled")
        if frame.outcome == Outcome.OVERDUE:
            return DeviceTimeError(frame.overdue_limit)
        if frame.is_overlong:
            seconds = self._handler.patience.call_seconds
            return CancelledError(f"the call took longer than {seconds:g} s (--max-call-seconds)")
        return None

    def _add(self, read: Frame) -> tuple[Frame | None, bool]:
        """Add a frame; returns the frame whose work may begin, if any, and whether to read on."""
        with self._lock:
            if self._is_finishing:
                return None, False
            if not self._frames:
                self._frames.append(read)
                return read, True
            skipped = [frame for frame in self._frames if frame.may_be_skipped and frame.waits]
            for frame in [frame for frame in skipped if frame in self._waiting]:
                # The frame has no call yet.
                self._waiting.remove(frame)
                self._frames.remove(frame)
                skipped.remove(frame)
            self._frames.append(read)
            self._waiting.append(read)
            begun = self._next_to_begin()
            self._is_reading = self._reads_on
            is_reading = self._is_reading
        for frame in skipped:
            frame.skip()
        return begun, is_reading

    @property
    def _reads_on(self) -> bool:
        """Whether another request can be accepted."""
        if self._waiting:
            return self._waiting[-1].may_be_skipped
        return len(self._frames) < _MOST_FRAMES

    def _next_to_begin(self) -> Frame | None:
        if not self._waiting:
            return None
        most = _MOST_REPLACEABLE if self._waiting[0].may_be_skipped else _MOST_FRAMES
        return self._waiting.popleft() if len(self._frames) - len(self._waiting) < most else None

    def _work(self, frame: Frame) -> None:
        self._work_on(frame)
        frame.is_done = True
        self.send_due()

    def _work_on(self, frame: Frame) -> None:
        frame.work(self._handler, self.call, self._render)
        if frame.is_refused:
            self.line.refused_from = min(self.line.refused_from, frame.number)
            self.finish(StoppingError())

    def send_due(self) -> None:
        """Send the replies that are due, unless another thread does, and end the stream after the last reply."""
        with self._lock:
            if self._is_sending:
                return
            self._is_sending = True
        while (frame := self._next_due()) is not None:
            frame.is_skipped |= frame.number >= self.line.refused_from
            try:
                frame.send(self._handler, self._send)
            except BaseException as error:
                # The worker itself failed, so later frames must not wait for this one.
                self._abandon(error)
            self.call.progress.renew()
            self._remove(frame)

    def _next_due(self) -> Frame | None:
        with self._lock:
            if self._frames and self._frames[0].is_done:
                return self._frames[0]
            self._is_sending = False
            is_end = self._is_finishing and not self._frames and not len(self.line) and not self._is_over
            self._is_over = self._is_over or is_end
            error = self._error
        if is_end:
            self._close(error)
        return None

    def _remove(self, sent: Frame) -> None:
        """Remove a sent frame, and let frames that waited for it begin."""
        with self._changed:
            self._frames.popleft()
            self._changed.notify_all()
            begun = self._next_to_begin()
            goes_on = not self._is_reading and not self._is_finishing and self._reads_on
            self._is_reading = self._is_reading or goes_on
        if begun is not None:
            self._threads.submit(self._work, begun)
        if goes_on:
            self._threads.submit(self._read)

    def _send(self, raw: bytes) -> bool:
        """Send a message; False if the stream is over."""
        if self._is_over:
            return False
        sending = self.call.progress.sending
        with sending:
            self.push(raw)
        sending.moved(len(raw))
        # A message that gRPC has taken may have arrived, even if the stream has ended since.
        return True

    def _close(self, error: BaseException | None) -> None:
        self._handler.end_pushed(self.call, self.context, error)
        self.push(None)

    def _abandon(self, error: BaseException) -> None:
        """End the stream, and all of its frames, at once."""
        with self._lock:
            was_over, self._is_over = self._is_over, True
            self._is_finishing = self.line.is_closed = True
            frames = [frame for frame in self._frames if frame not in self._waiting]
            for frame in self._waiting:
                self._frames.remove(frame)
            self._waiting.clear()
            self._changed.notify_all()
        self.line.cancel()
        for frame in frames:
            frame.call.cancel("the stream was cancelled")
        if not was_over:
            self._close(error)
