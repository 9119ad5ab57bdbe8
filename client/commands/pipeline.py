"""Several renderings on their way at a time, so that the worker does not wait for pictures to be written."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

# One is computed, one is written, and one is on its way.
_IN_FLIGHT = 3


def in_order(job: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Results of a job for each item, in the items' order, computed a few at a time in threads.

    The first error ends it; jobs that have not begun are dropped.
    """
    pool = ThreadPoolExecutor(_IN_FLIGHT, thread_name_prefix="render")
    waiting: deque[Future[R]] = deque()
    try:
        for item in items:
            if len(waiting) == _IN_FLIGHT:
                yield waiting.popleft().result()
            waiting.append(pool.submit(job, item))
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def with_progress(results: Iterable[R], count: int) -> Iterable[R]:
    """The same with a bar on standard error that shows rate and time left; without tqdm, or for one result, without."""
    try:
        from tqdm import tqdm
    except ImportError:
        return results
    if count < 2:
        return results
    bar: Iterable[R] = tqdm(results, total=count, desc="rendering", unit="frame", file=sys.stderr)
    return bar
