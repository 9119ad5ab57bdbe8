"""Work on the newest value, in a thread of its own; values that came meanwhile are left out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Latest(Generic[T]):
    """One piece of work at a time."""

    def __init__(self, work: Callable[[T], None]) -> None:
        self._work = work
        self._changed = threading.Condition()
        self._values: list[T] = []
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def put(self, value: T) -> None:
        """Work on this as soon as what is under way is done. Returns at once."""
        with self._changed:
            self._values[:] = [value]
            self._changed.notify_all()

    def close(self) -> None:
        """No more of it; what is under way goes on."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def pause(self, seconds: float) -> None:
        """For the work: waits until there is another value, or it is closed, but not longer than this."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._values) or self._is_closed, seconds)

    def again(self, value: T) -> None:
        """For the work: the same once more, unless there is another value by now."""
        with self._changed:
            self._values = self._values or [value]

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._values) or self._is_closed)
                if self._is_closed:
                    return
                value = self._values.pop()
            self._work(value)
