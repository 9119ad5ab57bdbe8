"""Whether what a thread calls holds the GIL, so that no other Python runs meanwhile."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise

_STEP_SECONDS = 2e-5
# Longer than any test: the GIL changes hands where it is released, and is never taken away.
_NEVER_SECONDS = 1e4


def held(call: Callable[[], object], *, calls: int = 100, enough: float = 0.0) -> float:
    """The part of a call's processor time that passes between two steps of another thread at most; 1: it holds the GIL.

    The least of several calls, up to one that has `enough`: on a busy machine the other thread may wait for a core.
    """
    own = time.pthread_getcpuclockid(threading.get_ident())
    steps: list[float] = []
    done = threading.Event()

    def step() -> None:
        while not done.is_set():
            steps.append(time.clock_gettime(own))
            time.sleep(_STEP_SECONDS)

    def measured() -> float:
        start = time.clock_gettime(own)
        call()
        end = time.clock_gettime(own)
        moments = [start, *(moment for moment in steps if start < moment < end), end]
        steps.clear()
        return max(after - before for before, after in pairwise(moments)) / (end - start)

    call()
    interval, thread = sys.getswitchinterval(), threading.Thread(target=step)
    sys.setswitchinterval(_NEVER_SECONDS)
    thread.start()
    try:
        least = 1.0
        for _ in range(calls):
            least = min(least, measured())
            if least <= enough:
                break
            time.sleep(_STEP_SECONDS)
        return least
    finally:
        done.set()
        thread.join()
        sys.setswitchinterval(interval)
