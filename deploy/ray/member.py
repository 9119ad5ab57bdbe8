"""One worker, as its fleet knows it."""

from __future__ import annotations

import time
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError

from lumigrad.ray.worker import Look


class Member:
    """Polls the state of a worker's actor, and keeps its last report.

    Attributes:
        number: the worker's place in the order in which workers were added.
        seen: the worker's last report; None if there is none yet, or the worker is being restarted.
        is_leaving: whether the worker finishes its calls and then ends.
        has_gone: whether the worker has ended for good.
    """

    def __init__(self, number: int, actor: Any, silence_s: float) -> None:
        self.number = number
        self.seen: Look | None = None
        self.is_leaving = False
        self.has_gone = False
        self._actor = actor
        self._silence_s = silence_s
        self._pending: Any = actor.look.remote()
        self._asked_at = time.monotonic()

    @property
    def is_serving(self) -> bool:
        """Whether clients should call the worker."""
        return self.seen is not None and self.seen.is_serving and not self.is_leaving

    def hear(self) -> None:
        """Takes the report if it has arrived, and asks for the next one."""
        ready, _ = ray.wait([self._pending], timeout=0)
        if not ready:
            self._mind_silence()
            return
        try:
            answer = ray.get(self._pending)
        except ActorUnavailableError:
            # Ray is restarting the actor.
            self.seen = None
        except (ActorDiedError, RayError):
            self.seen, self.has_gone = None, True
            return
        else:
            if self.is_leaving:
                self.end()
                return
            self.seen = answer
        self._ask(self._actor.look)

    def leave(self) -> None:
        """Lets the worker finish its calls and end."""
        self.is_leaving = True
        self._ask(self._actor.stop)

    def end(self) -> None:
        """Ends the worker for good, without waiting for its calls."""
        self.has_gone = True
        ray.kill(self._actor)

    def _ask(self, method: Any) -> None:
        self._pending, self._asked_at = method.remote(), time.monotonic()

    def _mind_silence(self) -> None:
        # A worker without a report may still wait for resources, or load its libraries.
        if self.seen is not None and not self.is_leaving and time.monotonic() - self._asked_at > self._silence_s:
            self.seen = None
            ray.kill(self._actor, no_restart=False)
            self._ask(self._actor.look)
