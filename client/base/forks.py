"""What a child of a fork has to begin anew: connections, locks and threads of its parent are of no use to it."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from types import FrameType
from typing import Protocol


class Renewable(Protocol):
    """Something that does not survive a fork as it is."""

    def after_fork(self, is_sound: bool) -> None:
        """Begins anew, in the child. Called before anything else; must not wait for a lock or for gRPC.

        Args:
            is_sound: whether gRPC works here. It does not reliably if threads of the parent were in the midst of it.
        """


class _Forks:
    """What is to begin anew, and what was so when the last fork was made."""

    def __init__(self) -> None:
        self.followed: weakref.WeakSet[Renewable] = weakref.WeakSet()
        self._is_sound = True
        os.register_at_fork(before=self._before, after_in_child=self._in_child)

    def _before(self) -> None:
        others = [frame for thread, frame in sys._current_frames().items() if thread != threading.get_ident()]
        self._is_sound = not any(map(is_in_grpc, others))

    def _in_child(self) -> None:
        for thing in tuple(self.followed):
            thing.after_fork(self._is_sound)


def follow(thing: Renewable) -> None:
    """Has `thing.after_fork` called in the children of each fork, for as long as it lives."""
    _FORKS.followed.add(thing)


def is_in_grpc(innermost: FrameType) -> bool:
    """Whether a thread that stands there has called gRPC."""
    frame: FrameType | None = innermost
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("grpc."):
            return True
        frame = frame.f_back
    return False


_FORKS = _Forks()
