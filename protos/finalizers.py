"""Finalizers that lose no interrupt."""

from __future__ import annotations

import signal
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

# The main thread has left a finalizer by then. If it is in another one, the interrupt is put off again.
_LATER_S = 0.01


def finalize(owner: object, work: Callable[..., object], *arguments: object) -> weakref.finalize[..., Any]:
    """Have `work` called with the arguments when `owner` is destroyed, but not at the end of the process.

    Python prints and forgets what a finalizer raises. A KeyboardInterrupt, as of Ctrl-C, is therefore raised again in
    the main thread a moment later, also while that waits.
    """
    finalizer = weakref.finalize(owner, _finish, work, arguments)
    finalizer.atexit = False
    return finalizer


def _finish(work: Callable[..., object], arguments: tuple[object, ...]) -> None:
    try:
        work(*arguments)
    except KeyboardInterrupt as interrupt:
        _raise_later(interrupt)


def _raise_later(interrupt: KeyboardInterrupt) -> None:
    """Raise the interrupt in the main thread, where handlers of signals raise it, once this finalizer is over.

    Only a signal wakes a thread that waits for a lock. SIGURG does nothing if it comes too late, and SIGINT may be
    ignored.
    """
    # A handler that Python has not installed cannot be put back; by default the signal is ignored.
    before = signal.getsignal(signal.SIGURG) or signal.SIG_DFL

    def raise_again(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGURG, before)
        raise interrupt

    signal.signal(signal.SIGURG, raise_again)
    threading.Timer(_LATER_S, signal.pthread_kill, (threading.get_ident(), signal.SIGURG)).start()
