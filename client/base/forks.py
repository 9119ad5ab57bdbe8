"""Resets objects in forked child processes, where the parent's connections, locks and threads are unusable."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from types import FrameType
from typing import Protocol


class Renewable(Protocol):
    """An object that must be reset after a fork."""

    def after_fork(self, is_sound: bool) -> None:
        """Resets the object in the child. Called before anything else; must not wait for a lock or for gRPC.

        Args:
            is_sound: whether gRPC works in the child; unreliable if parent threads were inside it at the fork.
        """


class _Forks:
    """The objects to reset after a fork, and whether gRPC was idle at the last one."""

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
    """Registers `thing`: its `after_fork` is called in the child of each fork while `thing` is alive."""
    _FORKS.followed.add(thing)


def is_in_grpc(innermost: FrameType) -> bool:
    """Whether gRPC is on the call stack above the frame `innermost`."""
    frame: FrameType | None = innermost
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("grpc."):
            return True
        frame = frame.f_back
    return False


_FORKS = _Forks()
