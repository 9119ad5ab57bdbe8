"""Work in several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable


def run_at_once(*works: Callable[[], object]) -> None:
    """Runs each function in a thread of its own, all at the same time, and waits for their ends."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
