"""One call on its way to a worker that can answer it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from lumigrad.client.errors import Cancelled, DeadlineExceeded, ResourceExhausted, SceneNotFound, Unavailable
from lumigrad.client.retry import Deadline, retry_unavailable
from lumigrad.client.ring import ranked
from lumigrad.client.wish import Wish
from lumigrad.client.worker import Worker

T = TypeVar("T")
# A crowd that finds a worker full must not carry its scene to all others.
_MOST_SPILLS = 2


class Search:
    """Asks workers in the order in which a wish prefers them, until one has answered."""

    def __init__(self, members: Callable[[], Sequence[Worker]], wish: Wish) -> None:
        """`members` tells the workers that there are, each time anew."""
        self._members = members
        self._wish = wish
        # In this round; another one begins, after a pause, when everybody has been asked.
        self._asked: set[Worker] = set()
        self._missed: Unavailable | Cancelled | None = None
        self._failures: dict[str, Unavailable] = {}
        self._busy: ResourceExhausted | None = None
        self._spills = 0

    def run(self, ask: Callable[[Worker], T], deadline: Deadline, retry_s: float) -> T:
        """The answer of the first worker that gives one.

        Raises:
            Unavailable: none did, for `retry_s` and the time of the last attempt; the text names all of them.
        """
        try:
            return retry_unavailable(lambda: self._attempt(ask, deadline), deadline, retry_s, self._has_others)
        except Unavailable as error:
            if len(self._failures) < 2 or error.is_lasting:
                raise
            told = "; ".join(f"{target}: {failure}" for target, failure in self._failures.items())
            text = f"none of {len(self._failures)} workers answered: {told}"
            raise Unavailable(text, was_begun=error.was_begun) from error

    def _attempt(self, ask: Callable[[Worker], T], deadline: Deadline) -> T:
        while True:
            worker = self._next()
            try:
                with worker.busy():
                    worker.store.catch_up(deadline)
                    return ask(worker)
            except Unavailable as error:
                worker.health.doubt()
                self._failures[worker.target] = self._missed = error
                raise
            except DeadlineExceeded:
                worker.health.suspect()
                raise
            except Cancelled as error:
                self._missed = error
                raise
            except ResourceExhausted as error:
                self._busy = self._busy or error
                if error.retry_after_s is None or not self._may_spill():
                    busy, self._busy = self._busy, None
                    # After a pause another round begins, with the worker that the call prefers.
                    self._asked.clear()
                    self._spills = 0
                    raise busy from None
                self._spills += 1
            except SceneNotFound:
                # There is no copy of it here that could be put: it may be on another worker.
                if not self._has_others():
                    # One that did not answer may have it.
                    if self._missed is not None:
                        raise self._missed from None
                    raise

    def _may_spill(self) -> bool:
        return self._wish.is_movable and self._spills < _MOST_SPILLS and self._has_others()

    def _has_others(self) -> bool:
        return any(worker not in self._asked for worker in self._members())

    def _next(self) -> Worker:
        members = in_order(self._wish, self._members())
        worker = next((worker for worker in members if worker not in self._asked), None)
        if worker is None:
            self._asked.clear()
            self._missed = None
            worker = members[0]
        self._asked.add(worker)
        return worker


def in_order(wish: Wish, members: Sequence[Worker]) -> list[Worker]:
    """Whom to ask first, second, ...: who has it if nobody here does, then by the key or by load; away last."""
    if wish.key:
        by_target = {worker.target: worker for worker in members}
        ordered = [by_target[target] for target in ranked(wish.key, by_target)]
        shared = sorted(ordered[: wish.copies], key=lambda worker: worker.under_way)
        ordered[: wish.copies] = shared
    else:
        ordered = sorted(members, key=lambda worker: (worker.under_way, worker.asked))
    return sorted(ordered, key=lambda worker: _rank(wish, worker))


def _rank(wish: Wish, worker: Worker) -> tuple[bool, int, bool]:
    is_there = worker.target == wish.address
    return (not is_there and not wish.is_movable, worker.health.standing, not is_there)
