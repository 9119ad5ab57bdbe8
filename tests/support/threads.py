"""Work in several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable


def run_at_once(*works: Callable[[], object]) -> None:
    """Runs each function in a thread of its own, all at the same time, and waits for their ends.

    Raises:
        Exception: the error of a function.
    """
    errors: list[BaseException] = []

    def run(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]
