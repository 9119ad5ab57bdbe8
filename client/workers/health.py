"""Watches a worker's reported health for as long as the client uses the worker."""

from __future__ import annotations

import random
import threading
from enum import IntEnum
from typing import Any

import grpc

# Independent of the global generator, which a program may seed.
_random = random.Random()

_WATCH, _CHECK = "/grpc.health.v1.Health/Watch", "/grpc.health.v1.Health/Check"
# The serialized request for the whole worker and the reply SERVING, so simple that no generated messages are needed.
_WHOLE = b""
_SERVING = b"\x08\x01"
# The pause between watches grows after refusals, since a worker limits the number of watches.
_PAUSE_S = 0.1
_LARGEST_PAUSE_S = 30.0
# The time-out of a health check after a call timed out; a check needs no thread or device of the worker.
_CHECK_S = 2.0


class Standing(IntEnum):
    """The preference rank of a worker; lower values are preferred."""

    # No problem is known.
    READY = 0
    # The worker still accepts calls, but should get no new ones: it is about to stop, or its device fails.
    LEAVING = 1
    # The worker does not answer.
    GONE = 2


class Health:
    """Tracks the standing of one worker: READY until a health report or a failed call changes it."""

    def __init__(self, channel: grpc.Channel) -> None:
        """Prepares the RPCs; `start` begins to watch."""
        self.standing = Standing.READY
        self._watch = channel.unary_stream(_WATCH, request_serializer=bytes, response_deserializer=bytes)
        self._check = channel.unary_unary(_CHECK, request_serializer=bytes, response_deserializer=bytes)
        self._lock = threading.Lock()
        self._call: Any = None
        self._is_watch_stale = self._is_check_due = False
        self._is_closed = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread that watches, once."""
        with self._lock:
            if self._thread is None and not self._is_closed.is_set():
                self._thread = threading.Thread(target=self._run, name="lumigrad health", daemon=True)
                self._thread.start()

    def note_unavailable(self) -> None:
        """Records that a call could not reach the worker: it counts as GONE until it reports its health again."""
        self.standing = Standing.GONE
        self._watch_anew()

    def note_timeout(self) -> None:
        """Records that a call timed out, and checks whether the worker still answers: the call may just be slow."""
        self._is_check_due = True
        self._watch_anew()

    def close(self) -> None:
        """Stops watching."""
        self._is_closed.set()
        with self._lock:
            if self._call is not None:
                self._call.cancel()

    def _watch_anew(self) -> None:
        with self._lock:
            self._is_watch_stale = True
            if self._call is not None:
                self._call.cancel()

    def _verify(self) -> None:
        """Sends a health check, because a worker whose connection is dead reports nothing."""
        self._is_check_due = False
        try:
            self._check(_WHOLE, timeout=_CHECK_S)
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE):
                self.standing = Standing.GONE

    def _run(self) -> None:
        pause = _PAUSE_S
        while not self._is_closed.wait(pause * _random.uniform(0.5, 1.0)):
            try:
                if self._is_check_due:
                    self._verify()
                with self._lock:
                    self._is_watch_stale = False
                    self._call = self._watch(_WHOLE, wait_for_ready=True)
                for status in self._call:
                    self.standing = Standing.READY if status == _SERVING else Standing.LEAVING
                    pause = _PAUSE_S
            except grpc.RpcError as error:
                code = error.code()
                if code is grpc.StatusCode.UNAVAILABLE:
                    self.standing = Standing.GONE
                elif not self._is_watch_stale:
                    # The worker has too many watches, or no health service; calls will show whether it answers.
                    self.standing = Standing.READY
                    pause = min(2 * pause, _LARGEST_PAUSE_S)
            except ValueError:
                # gRPC raises this if the channel is closed.
                return
