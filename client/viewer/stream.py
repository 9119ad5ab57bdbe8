"""Pictures for one browser: the newest wish wins, coarse while it moves and sharp at rest; old ones never queue."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from lumigrad.client.cancellation import Cancellation
from lumigrad.client.errors import Cancelled, LumigradError
from lumigrad.client.viewer.pace import Pace

# A camera that did not move for so long rests.
_REST_S = 0.18
# After a worker that did not answer, until it is asked again.
_PAUSE_S = 0.5


@dataclass(frozen=True)
class Order:
    """What is to be rendered next.

    Attributes:
        width: pixels.
        height: pixels.
        is_sharp: the camera rests; this picture stays.
    """

    width: int
    height: int
    is_sharp: bool


class Wish(Protocol):
    """What somebody wants to see.

    Attributes:
        size: width and height of the sharp picture, pixels.
    """

    @property
    def size(self) -> tuple[int, int]:
        """Of the sharp picture."""


W = TypeVar("W", bound=Wish)
P = TypeVar("P")


@dataclass(frozen=True)
class Shown(Generic[P]):
    """A picture that has arrived in the browser.

    Attributes:
        order: what was rendered.
        picture: the result.
        render_s: seconds from the order to the picture here.
        deliver_s: seconds from there to the browser.
    """

    order: Order
    picture: P
    render_s: float
    deliver_s: float


class Stream(Generic[W, P]):
    """Two threads: one has a picture rendered while the other delivers the one before.

    At most one picture is rendered, one waits and one is on its way to the browser. A sharp picture that is overtaken
    by a new wish is cancelled, also at the worker; a coarse one is shown, since there would be none otherwise.
    """

    def __init__(
        self,
        render: Callable[[W, Order], P],
        deliver: Callable[[P], None],
        pace: Pace,
        *,
        note: Callable[[Shown[P]], None] = lambda shown: None,
        fail: Callable[[LumigradError], bool] = lambda error: False,
    ) -> None:
        """Starts; nothing happens before the first wish.

        Args:
            render: makes a picture; may raise LumigradError.
            deliver: returns when the browser has the picture.
            pace: chooses the sizes of coarse pictures.
            note: told of each picture that was delivered.
            fail: told of an error of `render`; whether to try again, after a pause.
        """
        self._render, self._deliver, self._pace, self._note, self._fail = render, deliver, pace, note, fail
        self._changed = threading.Condition()
        self._wish: W | None = None
        self._wished_at = 0.0
        self._has_news = self._owes_sharp = self._is_closed = False
        self._sharp_call: Cancellation | None = None
        self._ready: tuple[Order, P, float] | None = None
        self._threads = [threading.Thread(target=job, daemon=True) for job in (self._render_all, self._deliver_all)]
        for thread in self._threads:
            thread.start()

    def wish(self, wish: W) -> None:
        """From now on this is to be seen. Returns at once."""
        with self._changed:
            self._wish, self._wished_at = wish, time.monotonic()
            self._has_news = self._owes_sharp = True
            if self._sharp_call is not None:
                self._sharp_call.cancel()
            self._changed.notify_all()

    def close(self) -> None:
        """Ends it; what is under way is cancelled. Does not wait."""
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
            wish, order = job
            call, context, began = Cancellation(), copy_context(), time.monotonic()
            call.enter(context)
            with self._changed:
                self._sharp_call = call if order.is_sharp else None
                if order.is_sharp and self._has_news:
                    call.cancel()
            try:
                picture = context.run(self._render, wish, order)
            except LumigradError as error:
                if not (isinstance(error, Cancelled) and call.wait(0.0)):
                    self._after_failure(error)
                continue
            finally:
                self._sharp_call = None
            with self._changed:
                self._ready = order, picture, time.monotonic() - began
                if order.is_sharp and not self._has_news:
                    self._owes_sharp = False
                self._changed.notify_all()

    def _next_job(self) -> tuple[W, Order] | None:
        """Waits for something to render; None: it is closed."""
        with self._changed:
            while not self._is_closed:
                rest_s = self._wished_at + _REST_S - time.monotonic()
                if self._ready is not None or self._wish is None or not (self._has_news or self._owes_sharp):
                    self._changed.wait()
                elif self._has_news:
                    self._has_news = False
                    return self._wish, Order(*self._pace.size(*self._wish.size), is_sharp=False)
                elif rest_s > 0.0:
                    self._changed.wait(rest_s)
                else:
                    return self._wish, Order(*self._wish.size, is_sharp=True)
            return None

    def _after_failure(self, error: LumigradError) -> None:
        if self._is_closed:
            return
        goes_on = self._fail(error)
        with self._changed:
            if goes_on:
                self._changed.wait_for(lambda: self._is_closed, _PAUSE_S)
            else:
                # The same would fail again: until there is another wish, nothing.
                self._owes_sharp = self._has_news

    def _deliver_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ready is not None or self._is_closed)
                if self._is_closed or self._ready is None:
                    return
                order, picture, render_s = self._ready
                self._ready = None
                self._changed.notify_all()
            began = time.monotonic()
            self._deliver(picture)
            deliver_s = time.monotonic() - began
            self._pace.observe(order.width * order.height, max(render_s, deliver_s))
            self._note(Shown(order, picture, render_s, deliver_s))
