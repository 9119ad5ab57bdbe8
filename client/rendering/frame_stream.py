"""The frames in flight of a stream, and the RPC that carries them, which is replaced when it breaks."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from typing import Any

import grpc

from lumigrad.client.base import forks
from lumigrad.client.errors import (
    Cancelled,
    InvalidArgument,
    LaneLost,
    LumigradError,
    ResourceExhausted,
    SceneNotFound,
    Unavailable,
    VersionMismatch,
)
from lumigrad.client.rendering.frame import Frame, render
from lumigrad.client.rendering.frame_exchange import FrameExchange, Sent
from lumigrad.client.rendering.request import RenderRequest, outputs_of
from lumigrad.client.transport.call import Call, Cancellation
from lumigrad.client.transport.connection import Reply
from lumigrad.client.values.handle import SceneHandle
from lumigrad.client.workers.attempts import RoutedAttempts
from lumigrad.client.workers.pool import Pool
from lumigrad.client.workers.worker import Worker
from lumigrad.protos.errors import ProtocolError

# Errors that rendering the frame in a call of its own may resolve: it stores the scene again, tries another worker, or
# avoids the lane.
_MENDED = (LaneLost, SceneNotFound, Unavailable, VersionMismatch)
# A frame is given up this long after its time-out, because the worker itself reports late frames if it can.
_GRACE_S = 0.5
_LOOK_S = 0.25
# In a forked child: the parent's RPCs, kept alive because gRPC must not destroy them here.
_LEFT: list[FrameExchange | None] = []


class FrameStream:
    """Sends requests about one scene, and returns their frames in order. One thread may send while another receives.

    Attributes:
        in_flight: the most frames that may be pending, unless `latest_only` is set.
    """

    def __init__(
        self, workers: Pool, scene: SceneHandle, call: Call, *, in_flight: int, latest_only: bool, retain: bool
    ) -> None:
        """Begins without an RPC; each frame has the time-out of `call`, and all share its trace."""
        self.in_flight = in_flight
        self._workers = workers
        self._scene = scene
        self._call = call
        self._latest_only = latest_only
        self._retain = retain
        self._number = 0
        # Frames that were requested and not received, in order.
        self._pending: deque[Sent] = deque()
        self._exchange: FrameExchange | None = None
        self._is_closed = self._is_watched = False
        self._make_locks()
        forks.follow(self)

    def _make_locks(self) -> None:
        # Held briefly to change the state, while receiving, and while looking for a worker, respectively.
        self._lock, self._receiving, self._opening = threading.Lock(), threading.Lock(), threading.Lock()

    def after_fork(self, is_sound: bool) -> None:
        """Leaves the RPC to the parent process; gRPC must not even destroy it in the child."""
        _LEFT.append(self._exchange)
        self._exchange = None
        self._pending.clear()
        self._is_watched = False
        self._make_locks()

    @property
    def pending(self) -> int:
        """The number of frames that were requested and not received."""
        return len(self._pending)

    def ask(self, request: RenderRequest, cancellation: Cancellation | None) -> None:
        """Requests a frame; `cancellation` ends the search for a worker."""
        with self._lock:
            self._check_open()
            if len(self._pending) >= self.in_flight and not self._latest_only:
                what = f"expected at most in_flight = {self.in_flight} pending frames, got one more"
                raise InvalidArgument.of("camera", f"{what}; receive a frame first")
            self._number += 1
            sent = Sent(self._number, request, self._call.renewed(self._call.timeout_s))
            exchange = self._exchange
            if exchange is not None:
                exchange.send(sent, pipelined=bool(self._pending))
            self._pending.append(sent)
        if exchange is None:
            sent.call.cancellation = cancellation
            self._find_worker(sent)

    def receive(self, cancellation: Cancellation | None) -> Frame:
        """Waits for the next frame; `cancellation` ends the RPC, and pending frames are then requested again."""
        with self._receiving:
            with self._lock:
                self._check_open()
                if not self._pending:
                    raise InvalidArgument.of("stream", "no frame is pending; send a camera first")
                oldest = self._pending[0]
            oldest.call.cancellation = cancellation
            try:
                exchange, sent, reply = self._next(oldest)
            except BaseException:
                self._give_up(oldest)
                raise
        if isinstance(reply, Reply):
            kept = exchange.kept(reply.header.context_id)
            return Frame(
                self._workers,
                sent.request,
                *outputs_of(reply.header.outputs, reply.reader),
                kept,
                reply.timings,
                reply.header,
            )
        is_full = isinstance(reply, ResourceExhausted) and reply.retry_after_s is not None
        if is_full or isinstance(reply, _MENDED):
            sent.call.cancellation = cancellation
            return render(self._workers, sent.request, self._retain, sent.call)
        raise reply

    def close(self) -> bool:
        """Ends the RPC and cancels pending frames; returns whether the stream was open."""
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
            self._drop_exchange(is_answered=not self._pending)
            self._pending.clear()
        return not was_closed

    def look(self) -> bool:
        """Cancels the RPC if the worker does not even report a late frame; returns whether the stream is open."""
        with self._lock:
            exchange, oldest = self._exchange, self._pending[0] if self._pending else None
        if exchange is not None and oldest is not None and time.monotonic() > oldest.call.end + _GRACE_S:
            exchange.rpc.cancel()
        return not self._is_closed

    def _check_open(self) -> None:
        if self._is_closed:
            raise LumigradError("this stream is closed; open another one")

    def _find_worker(self, sent: Sent) -> None:
        """Opens an RPC, unless another thread is opening one, which then also sends this frame."""
        if not self._opening.acquire(blocking=False):
            return
        try:
            attempts = RoutedAttempts(self._workers, self._scene, sent.call)
            while self._exchange is None:
                with attempts as worker:
                    self._open(worker, attempts.call)
        except BaseException:
            with self._lock:
                if sent in self._pending:
                    self._pending.remove(sent)
            raise
        finally:
            sent.call.cancellation = None
            self._opening.release()

    def _open(self, worker: Worker, call: Call) -> FrameExchange:
        """Opens an RPC to a worker and sends the pending frames."""
        with self._lock:
            self._check_open()
            self._drop_exchange()
            while self._latest_only and len(self._pending) > 1:
                self._pending.popleft()
            exchange = FrameExchange(worker, call, retain=self._retain, latest_only=self._latest_only)
            self._exchange = exchange
            for sent in self._pending:
                exchange.send(sent, pipelined=len(self._pending) > 1)
        if not self._is_watched:
            self._is_watched = True
            threading.Thread(target=_watch, args=(weakref.ref(self),), name="lumigrad frames", daemon=True).start()
        return exchange

    def _next(self, oldest: Sent) -> tuple[FrameExchange, Sent, Reply[Any] | LumigradError]:
        """Returns the next reply, from a new RPC if the current one breaks."""
        if self._exchange is not None:
            try:
                return self._received(self._exchange, oldest.call)
            except (Unavailable, Cancelled):
                # The RPC may have been cancelled by this program.
                oldest.call.check()
                oldest.call.remaining_s()
        with self._opening:
            attempts = RoutedAttempts(self._workers, self._scene, oldest.call)
            while True:
                with attempts as worker:
                    return self._received(self._open(worker, attempts.call), oldest.call)

    def _received(self, exchange: FrameExchange, call: Call) -> tuple[FrameExchange, Sent, Reply[Any] | LumigradError]:
        """Receives one reply, and drops the frames before it, which the worker has skipped."""
        sent: Sent | None = None
        try:
            with call.watching(exchange.rpc):
                answer = exchange.receive()
                sent = self._taken(answer.number)
                reply = exchange.reply(answer, sent)
        except BaseException as error:
            if sent is not None:
                with self._lock:
                    self._pending.appendleft(sent)
            if isinstance(error, grpc.RpcError):
                self._check_open()
                call.remaining_s()
            found = exchange.worker.connection.exception_of(error, call)
            raise found or error from error
        sent.end(succeeded=isinstance(reply, Reply))
        return exchange, sent, reply

    def _taken(self, number: int) -> Sent:
        """Removes a frame and all earlier ones from the pending frames; returns the frame."""
        with self._lock:
            self._check_open()
            while self._pending and self._pending[0].number < number:
                self._pending.popleft().end(succeeded=False)
            if not self._pending or self._pending[0].number != number:
                raise ProtocolError("number", "that of a frame that was asked for", number)
            return self._pending.popleft()

    def _give_up(self, oldest: Sent) -> None:
        """Ends the RPC after an error, and drops the oldest frame, unless it was cancelled."""
        with self._lock:
            self._drop_exchange()
            is_cancelled = oldest.call.cancellation is not None and oldest.call.cancellation.wait(0.0)
            if not is_cancelled and oldest in self._pending:
                self._pending.remove(oldest)

    def _drop_exchange(self, *, is_answered: bool = False) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.close(is_answered=is_answered)
            for sent in self._pending:
                sent.end(succeeded=False)


def _watch(stream: weakref.ref[FrameStream]) -> None:
    """Looks at a stream until it is closed or collected."""
    while (alive := stream()) is not None and alive.look():
        del alive
        time.sleep(_LOOK_S)
