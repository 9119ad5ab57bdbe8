"""Processes whose parents have gone and that this one inherits as the first of a container."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection

_FIRST = 1


def reap_orphans(own: Collection[int]) -> None:
    """Take leave of inherited processes that have ended: else each would keep its number until the container ends.

    Does nothing in a process that is not the first of its container. `own` are those that somebody else waits for.
    """
    if os.getpid() != _FIRST:
        return
    with contextlib.suppress(ChildProcessError):
        # Left as they are by this look: one of our own is for whoever started it, and stands in the way of the others
        # until then, which is soon.
        while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if found.si_pid in own:
                return
            os.waitpid(found.si_pid, 0)
