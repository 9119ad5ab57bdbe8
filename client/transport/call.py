"""The state of one call by the user: its deadline, routing key, cancellation and trace."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType
from typing import Any, TypeVar

from lumigrad.client.errors import Cancelled, DeadlineExceeded
from lumigrad.client.transport.addresses import LARGER_TIMEOUT
from lumigrad.client.transport.tracing import UNTRACED, Trace

# The routing key, by which a load balancer can send the calls about one scene to one worker without reading messages.
# This only saves uploads: the client sends each worker the scenes that it lacks.
AFFINITY_METADATA = "lumigrad-scene-id"


class Cancellation:
    """Cancels the calls that share it, from any thread and without waiting for them."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._calls: set[Any] = set()

    def cancel(self) -> None:
        """Cancels the calls in progress, and every later one."""
        with self._lock:
            self._event.set()
            calls = tuple(self._calls)
        for call in calls:
            call.cancel()

    @contextmanager
    def watch(self, call: Any) -> Iterator[None]:
        """Cancels a gRPC call if `cancel` is called within the `with` block."""
        with self._lock:
            self._calls.add(call)
            is_late = self._event.is_set()
        try:
            if is_late:
                call.cancel()
            yield
        finally:
            with self._lock:
                self._calls.discard(call)

    @property
    def is_cancelled(self) -> bool:
        """Whether `cancel` was called; does not wait."""
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Waits for `cancel` for at most this many seconds; returns whether it was called."""
        return self._event.wait(seconds)


C = TypeVar("C", bound="Cancellable")


class Cancellable:
    """A client whose calls another thread may cancel."""

    _cancellation: Cancellation | None = None

    def _cancelled_by(self: C, cancellation: Cancellation | None) -> C:
        """Returns a copy whose calls `cancellation` can cancel; None: they cannot be cancelled."""
        bound = object.__new__(type(self))
        bound.__dict__.update(self.__dict__, _cancellation=cancellation)
        return bound


class Call:
    """The state that all RPCs, attempts and repairs of one call share. Its `with` block ends the trace.

    Attributes:
        timeout_s: time-out of the whole call, seconds.
        affinity: the routing key of its RPCs; empty: any worker may answer them.
        cancellation: cancels the call from another thread; None: it cannot be cancelled.
        trace: its trace span.
        end: when its time-out expires, as time.monotonic().
    """

    def __init__(
        self,
        timeout_s: float,
        *,
        affinity: str = "",
        cancellation: Cancellation | None = None,
        trace: Trace = UNTRACED,
    ) -> None:
        """Starts the clock."""
        self.timeout_s = timeout_s
        self.affinity = affinity
        self.cancellation = cancellation
        self.trace = trace
        self.end = time.monotonic() + timeout_s

    def __enter__(self) -> Call:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.trace.end(error)

    def to(self, affinity: str) -> Call:
        """Returns the call with a routing key, unless it has one already."""
        if self.affinity or not affinity:
            return self
        # copy.copy takes ten times as long.
        routed = object.__new__(Call)
        vars(routed).update(vars(self), affinity=affinity)
        return routed

    def renewed(self, timeout_s: float) -> Call:
        """Returns the call with a new deadline, counted from now."""
        return Call(timeout_s, affinity=self.affinity, cancellation=self.cancellation, trace=self.trace)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata of its RPCs."""
        traced = self.trace.metadata
        return ((AFFINITY_METADATA, self.affinity), *traced) if self.affinity else traced

    def remaining_s(self) -> float:
        """Returns the seconds left; raises DeadlineExceeded if there are none."""
        left = self.end - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded(f"the call took longer than its time-out of {self.timeout_s:g} s; {LARGER_TIMEOUT}")
        return left

    def check(self) -> None:
        """Raises Cancelled if the call was cancelled."""
        if self.cancellation is not None and self.cancellation.is_cancelled:
            raise cancelled_here()

    def pause(self, seconds: float) -> None:
        """Sleeps; raises Cancelled as soon as the call is cancelled."""
        if self.cancellation is None:
            time.sleep(seconds)
        elif self.cancellation.wait(seconds):
            raise cancelled_here()

    def watching(self, rpc: Any) -> AbstractContextManager[None]:
        """Cancels the RPC if the call is cancelled within the `with` block."""
        return nullcontext() if self.cancellation is None else self.cancellation.watch(rpc)


def cancelled_here() -> Cancelled:
    """Returns the exception for a call that was cancelled in this process."""
    return Cancelled("this program cancelled the call")
