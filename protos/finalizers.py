"""Finalizers that lose no interrupt."""

from __future__ import annotations

import _thread
import threading
import weakref
from collections.abc import Callable
from typing import Any

# The main thread has left a finalizer by then. If it is in another one, the interrupt is put off again.
_LATER_S = 0.01


def finalize(owner: object, work: Callable[..., object], *arguments: object) -> weakref.finalize[..., Any]:
    """Have `work` called with the arguments when `owner` is destroyed, but not at the end of the process.

    Python prints and forgets what a finalizer raises. A KeyboardInterrupt, as of Ctrl-C, is therefore raised again in
    the main thread a moment later.
    """
    finalizer = weakref.finalize(owner, _finish, work, arguments)
    finalizer.atexit = False
    return finalizer


def _finish(work: Callable[..., object], arguments: tuple[object, ...]) -> None:
    try:
        work(*arguments)
    except KeyboardInterrupt:
        threading.Timer(_LATER_S, _thread.interrupt_main).start()
