"""Renders for one browser: always the newest pose, at a size that keeps the frame rate."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from lumigrad.client.errors import Cancelled
from lumigrad.client.transport.call import Cancellation

# Factor by which each new measurement reduces the weight of earlier ones.
_DECAY = 0.9
# Outliers, as on a busy machine, count as at most this multiple of the expected time.
_LARGEST_SURPRISE = 4.0
# The share of the time between pictures that pixels may take even if, with a distant worker, pictures of any size are
# late.
_LEAST_SHARE_OF_TIME = 0.3
# The variance of sizes, relative to their mean square, from which the times of several sizes are told apart.
_LEAST_SPREAD = 0.005
# The size is halved in this many steps, and changes if the ideal step differs by more than `_INERTIA_STEPS`.
_STEPS = 4
_INERTIA_STEPS = 0.75


class Pace:
    """Estimates the time of an image, a constant plus a part per pixel, and chooses sizes.

    Attributes:
        target_s: target time between images, seconds.
    """

    def __init__(self, target_s: float, smallest: float = 0.25) -> None:
        """Starts without measurements.

        Args:
            target_s: target time between images, seconds.
            smallest: smallest fraction of the full width and height.
        """
        self.target_s = target_s
        self._lowest_step = -_STEPS * math.log2(smallest)
        self._step = float(_STEPS)
        # Weighted sums of 1, pixels, seconds, pixels^2 and pixels * seconds over the measurements.
        self._sums = np.zeros(5)
        # The share of the time that depends on the size, which is assumed until pictures of two sizes were measured.
        self._pixel_share = 0.5
        # Seconds per image and per pixel.
        self._costs = 0.0, 0.0

    def observe(self, pixels: int, seconds: float) -> None:
        """Adds a measurement.

        Args:
            pixels: size of the image.
            seconds: time from one such image to the next.
        """
        if self._sums[0]:
            seconds = min(seconds, _LARGEST_SURPRISE * max(self.expected_s(pixels), 1e-3))
        self._sums = _DECAY * self._sums + (1.0, pixels, seconds, pixels**2, pixels * seconds)
        size, time_s, squares, products = (self._sums[1:] / self._sums[0]).tolist()
        spread = squares - size**2
        if spread > _LEAST_SPREAD * squares:
            # Least squares, with costs that are not negative.
            self._pixel_share = min(max((products / time_s - size) * size / spread, 0.0), 1.0)
        self._costs = (1.0 - self._pixel_share) * time_s, self._pixel_share * time_s / size

    def expected_s(self, pixels: int) -> float:
        """Returns the expected seconds of an image; 0 without measurements."""
        fixed, slope = self._costs
        return fixed + slope * pixels

    def size(self, width: int, height: int) -> tuple[int, int]:
        """Returns the size of the next image while the camera moves, for a window of this size; pixels."""
        fixed, slope = self._costs
        if self._sums[0]:
            spare = max(self.target_s - fixed, _LEAST_SHARE_OF_TIME * max(self.target_s, fixed))
            # Steps below full size at which images take the target time.
            ideal = min(max(_STEPS / 2 * math.log2(max(slope * width * height, 1e-9) / spare), 0.0), self._lowest_step)
            if abs(ideal - self._step) > _INERTIA_STEPS:
                self._step = min(float(round(ideal)), self._lowest_step)
        share = 2.0 ** (-self._step / _STEPS)
        return max(1, round(width * share)), max(1, round(height * share))


T = TypeVar("T")
_log = logging.getLogger("lumigrad")


def told(fail: Callable[[Exception], T], error: Exception) -> T | None:
    """Returns what `fail` returns for an error; None, and a line in the log, if it cannot show it."""
    try:
        return fail(error)
    except Exception:
        # The browser may have gone.
        _log.warning("the viewer cannot show an error: %s", error, exc_info=True)
        return None


class Latest(Generic[T]):
    """Runs work on the latest value, one at a time."""

    def __init__(self, work: Callable[[T], None], fail: Callable[[Exception], object]) -> None:
        """Starts the thread; `fail` is called with any error of the work, which does not end it."""
        self._work, self._fail = work, fail
        self._changed = threading.Condition()
        self._values: list[T] = []
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def put(self, value: T) -> None:
        """Sets the value for the next run. Returns at once."""
        with self._changed:
            self._values[:] = [value]
            self._changed.notify_all()

    def close(self) -> None:
        """Stops further runs; the current one continues."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def pause(self, seconds: float) -> None:
        """Waits for another value or `close`, at most this long; called by the work."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._values) or self._is_closed, seconds)

    def again(self, value: T) -> None:
        """Runs the work again with this value, unless there is another one; called by the work."""
        with self._changed:
            self._values = self._values or [value]

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._values) or self._is_closed)
                if self._is_closed:
                    return
                value = self._values.pop()
            try:
                self._work(value)
            except Exception as error:
                told(self._fail, error)


# A camera is at rest after this time without movement.
_REST_S = 0.18
# The pause before a retry after an error of the worker.
_PAUSE_S = 0.5


@dataclass(frozen=True)
class Order:
    """The next image to render.

    Attributes:
        width: pixels.
        height: pixels.
        is_sharp: whether the camera is at rest, so that this image stays.
    """

    width: int
    height: int
    is_sharp: bool


class Request(Protocol):
    """The request of a browser.

    Attributes:
        size: width and height of the sharp image, pixels.
    """

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the sharp image, pixels."""


W = TypeVar("W", bound=Request)
P = TypeVar("P")


@dataclass(frozen=True)
class Shown(Generic[P]):
    """An image that has arrived in the browser.

    Attributes:
        order: its size, and whether it is sharp.
        picture: the image.
        render_s: seconds from the order to the image in this process.
        deliver_s: seconds from then to the browser's acknowledgement.
    """

    order: Order
    picture: P
    render_s: float
    deliver_s: float


class Stream(Generic[W, P]):
    """Two threads: one renders an image while the other delivers the previous one.

    At most one image is being rendered, one waits and one is being delivered. A new request cancels a sharp image, on
    the worker too; a coarse one is still shown, because a moving camera would otherwise show none.
    """

    def __init__(
        self,
        render: Callable[[W, Order, Cancellation], P],
        deliver: Callable[[P], None],
        pace: Pace,
        *,
        note: Callable[[Shown[P]], None] = lambda shown: None,
        fail: Callable[[Exception], bool] = lambda error: False,
    ) -> None:
        """Starts the threads, which wait for the first request.

        Args:
            render: renders an image, which may be cancelled.
            deliver: returns when the browser has the image.
            pace: chooses the sizes of coarse images.
            note: called with each delivered image.
            fail: called with any error of these, none of which ends the stream; returns whether to render again after
                a pause.
        """
        self._render, self._deliver, self._pace, self._note, self._fail = render, deliver, pace, note, fail
        self._changed = threading.Condition()
        self._request: W | None = None
        self._requested_at = 0.0
        self._has_request = self._needs_sharp = self._is_delivering = self._is_closed = False
        self._sharp_call: Cancellation | None = None
        self._ready: tuple[Order, P, float] | None = None
        self._threads = [threading.Thread(target=job, daemon=True) for job in (self._render_all, self._deliver_all)]
        for thread in self._threads:
            thread.start()

    def request(self, request: W) -> None:
        """Sets the view to show from now on. Returns at once."""
        with self._changed:
            self._request, self._requested_at = request, time.monotonic()
            self._has_request = self._needs_sharp = True
            if self._sharp_call is not None:
                self._sharp_call.cancel()
            self._changed.notify_all()

    def refresh(self) -> None:
        """Shows the scene again, sharply, once the camera rests, because it has changed. Returns at once."""
        with self._changed:
            self._needs_sharp = True
            self._changed.notify_all()

    def close(self) -> None:
        """Closes the stream and cancels the current call. Does not wait."""
        with self._changed:
            self._is_closed = True
            if self._sharp_call is not None:
                self._sharp_call.cancel()
            self._changed.notify_all()

    def join(self, timeout_s: float) -> None:
        """Waits for the threads of a closed stream."""
        for thread in self._threads:
            thread.join(timeout_s)

    def _render_all(self) -> None:
        while (job := self._next_job()) is not None:
            request, order = job
            call, began = Cancellation(), time.monotonic()
            with self._changed:
                self._sharp_call = call if order.is_sharp else None
                if order.is_sharp and self._has_request:
                    call.cancel()
            failure: Exception | None = None
            try:
                picture = self._render(request, order, call)
            except Exception as error:
                failure = error
            with self._changed:
                self._sharp_call = None
                if failure is None:
                    self._ready = order, picture, time.monotonic() - began
                    self._changed.notify_all()
            if failure is not None and not (isinstance(failure, Cancelled) and call.wait(0.0)):
                self._after_failure(failure)

    def _next_job(self) -> tuple[W, Order] | None:
        """Waits for the next image to render; returns None if the stream is closed."""
        with self._changed:
            while not self._is_closed:
                rest_s = self._requested_at + _REST_S - time.monotonic()
                if self._ready is not None or self._request is None or not (self._has_request or self._needs_sharp):
                    self._changed.wait()
                elif self._has_request:
                    self._has_request = False
                    return self._request, Order(*self._pace.size(*self._request.size), is_sharp=False)
                elif rest_s > 0.0:
                    self._changed.wait(rest_s)
                else:
                    self._needs_sharp = False
                    return self._request, Order(*self._request.size, is_sharp=True)
            return None

    def _after_failure(self, error: Exception) -> None:
        with self._changed:
            # The image before must not arrive after the error: it would seem to be the one that failed.
            self._changed.wait_for(lambda: not (self._ready or self._is_delivering) or self._is_closed)
            if self._is_closed:
                return
        is_retried = told(self._fail, error)
        with self._changed:
            if is_retried:
                self._needs_sharp = True
                self._changed.wait_for(lambda: self._is_closed, _PAUSE_S)
            else:
                # The same request would fail again: wait for another one.
                self._needs_sharp = self._has_request

    def _deliver_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ready is not None or self._is_closed)
                if self._is_closed or self._ready is None:
                    return
                order, picture, render_s = self._ready
                self._ready, self._is_delivering = None, True
                self._changed.notify_all()
            began = time.monotonic()
            try:
                self._deliver(picture)
                deliver_s = time.monotonic() - began
                self._pace.observe(order.width * order.height, max(render_s, deliver_s))
                self._note(Shown(order, picture, render_s, deliver_s))
            except Exception as error:
                if not self._is_closed:
                    told(self._fail, error)
            with self._changed:
                self._is_delivering = False
                self._changed.notify_all()
