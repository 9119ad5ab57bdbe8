"""An open-loop load generator: calls start at a fixed rate, regardless of the replies to earlier ones.

A closed-loop generator, which waits for a reply before it sends the next request, sends fewer requests when the worker
is slow, and so underestimates latencies (coordinated omission). Here every call has a scheduled start, from which its
latency counts.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import grpc

from support.histogram import Histogram

# Makes a call, and raises if that fails or the answer is wrong.
Call = Callable[[], object]
OK = "ok"


class Load:
    """Calls picked at random from a few, at a fixed rate, until it is stopped. To be used as a context.

    `outcomes` counts calls as "ok", "wrong" (an AssertionError), or by the status or type of their error.
    """

    def __init__(self, calls: Sequence[Call], rate: float, *, most_at_once: int = 32, seed: int = 0) -> None:
        """At most `most_at_once` calls are in progress; further calls that are due wait, which counts as latency."""
        self.outcomes: Counter[str] = Counter()
        # Latencies of successful calls from their scheduled start.
        self.latencies = Histogram()
        # The first few errors, for messages.
        self.failures: list[Exception] = []
        self._calls = calls
        self._interval = 1 / rate
        # Numbers of the calls that are due and not over, and how many were due so far.
        self._under_way: set[int] = set()
        self._due = 0
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(most_at_once, "load")
        self._clock = threading.Thread(target=self._run, name="load clock")

    def __enter__(self) -> Load:
        self._clock.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def done(self) -> int:
        """Calls that succeeded."""
        return self.outcomes[OK]

    @property
    def failed(self) -> int:
        """Calls that did not."""
        return sum(self.outcomes.values()) - self.done

    def stop(self) -> None:
        """Make no more calls, and wait for those that are due."""
        self._stopped.set()
        self._clock.join()
        self._pool.shutdown()

    def wait_for_progress(self, calls: int = 10, seconds: float = 150) -> None:
        """Wait until all calls that are due now are over, and `calls` later ones have succeeded."""
        with self._lock:
            before, goal = self._due, self.done + calls + len(self._under_way)
        until = time.monotonic() + seconds
        # Later calls may overtake one that is repeated, which may not be lost more than a few times.
        while (self.done < goal or self._is_under_way(before)) and not self.failures:
            assert time.monotonic() < until, f"the load does not get on: {dict(self.outcomes)}"
            time.sleep(0.01)

    def _is_under_way(self, before: int) -> bool:
        """Whether one of the first calls is not over yet."""
        with self._lock:
            return any(number < before for number in self._under_way)

    def __str__(self) -> str:
        return f"{dict(self.outcomes)}; {self.latencies}"

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stopped.wait(max(0.0, due - time.monotonic())):
            call = self._random.choice(self._calls)
            with self._lock:
                number, self._due = self._due, self._due + 1
                self._under_way.add(number)
            self._pool.submit(self._make, call, number, due)
            due += self._interval

    def _make(self, call: Call, number: int, due: float) -> None:
        try:
            call()
        except Exception as error:
            self._note(_name(error), number, due, error)
        else:
            self._note(OK, number, due)

    def _note(self, outcome: str, number: int, due: float, error: Exception | None = None) -> None:
        with self._lock:
            self._under_way.remove(number)
            self.outcomes[outcome] += 1
            if error is None:
                self.latencies.add(time.monotonic() - due)
            elif len(self.failures) < 10:
                self.failures.append(error)


def _name(error: Exception) -> str:
    if isinstance(error, AssertionError):
        return "wrong"
    return str(error.code().name) if isinstance(error, grpc.RpcError) else type(error).__name__
