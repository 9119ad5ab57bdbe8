"""The threads that answer calls."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor


def call_threads(count: int) -> ThreadPoolExecutor:
    """A pool whose threads are all there from the start.

    One that failed to start another when a call comes would take gRPC's own thread along, and no call would be
    answered any more.
    """
    pool = ThreadPoolExecutor(count, "call")
    everybody = threading.Barrier(count)
    for started in [pool.submit(everybody.wait) for _ in range(count)]:
        started.result()
    return pool
