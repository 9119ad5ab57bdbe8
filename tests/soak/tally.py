"""The outcomes of a soak's calls, by name."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

MOST_NOTES = 20


class Tally:
    """Counts outcomes; safe to use from several threads.

    Attributes:
        good: replies that were as expected, by the name of the call.
        excused: "NAME ERROR" of calls whose errors were expected.
        failed: "NAME ERROR" of all other errors; an AssertionError is a wrong reply.
        notes: the text of the first failures.
        may_lose: whether a worker has died lately, so that data that it had not written to its spool may be lost.
    """

    def __init__(self) -> None:
        self.good: Counter[str] = Counter()
        self.excused: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.notes: list[str] = []
        self.may_lose = False
        self._lock = threading.Lock()

    def counted(
        self,
        name: str,
        call: Callable[[], object],
        excused: tuple[type[Exception], ...] = (),
        losses: tuple[type[Exception], ...] = (),
    ) -> Callable[[], None]:
        """Wraps a call to count its outcome and raise nothing.

        Args:
            name: the name of the call.
            call: raises an AssertionError if the reply is wrong.
            excused: errors that are not failures.
            losses: errors that are not failures after a worker has died.
        """

        def counted() -> None:
            may_lose = self.may_lose
            try:
                call()
            except Exception as error:
                # The worker may have died during the call.
                is_excused = isinstance(error, excused) or ((may_lose or self.may_lose) and isinstance(error, losses))
                self._note(name, error, is_excused)
            else:
                with self._lock:
                    self.good[name] += 1

        return counted

    @property
    def total(self) -> int:
        return sum(sum(counts.values()) for counts in (self.good, self.excused, self.failed))

    def as_dict(self) -> dict[str, Any]:
        return {"good": self.good, "excused": self.excused, "failed": self.failed, "notes": self.notes}

    def _note(self, name: str, error: Exception, is_excused: bool) -> None:
        key = f"{name} {type(error).__name__}"
        with self._lock:
            (self.excused if is_excused else self.failed)[key] += 1
            if not is_excused and len(self.notes) < MOST_NOTES:
                self.notes.append(f"{key}: {error}")
