"""The trainings of a tenant: one for a scene at a time, each in the hands of one call at a time."""

from __future__ import annotations

import hmac
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lumigrad.server.budget import Budget
from lumigrad.server.call import Call
from lumigrad.server.errors import BusyError, TrainingHeldError, TrainingLostError

if TYPE_CHECKING:
    from lumigrad.server.training.state import TrainingState

# A client whose connection broke has so long to come back before another may train the scene.
_RETURN_SECONDS = 60.0
# For the call that has a training to let go of it: it is between two parts of its work soon.
_HANDOVER_SECONDS = 30.0
_RETRY_SECONDS = 5.0


@dataclass(eq=False)
class Training:
    """A training on this worker."""

    training_id: str
    lease: str
    state: TrainingState
    # Whose it is now.
    holder: Call | None = None
    used: float = field(default_factory=time.monotonic)


class TrainingStore:
    """Trainings by their unguessable names, within the budget of all tenants."""

    def __init__(self, limit_bytes: int, idle_seconds: float, budget: Budget) -> None:
        self._limit_bytes = limit_bytes
        self._idle_seconds = idle_seconds
        self._budget = budget
        self._changed = threading.Condition()
        self._trainings: dict[str, Training] = {}
        budget.join(self)

    def __len__(self) -> int:
        return len(self._trainings)

    @property
    def bytes(self) -> int:
        """The size of all of them."""
        return sum(training.state.bytes for training in list(self._trainings.values()))

    def check_free(self, scene_id: str) -> None:
        """Raise if another client trains a scene."""
        with self._changed:
            present = self._of_scene(scene_id)
            if present is not None and (present.holder is not None or _idle(present) < _RETURN_SECONDS):
                raise TrainingHeldError(scene_id)

    def add(self, state: TrainingState, call: Call, training_id: str = "", lease: str = "") -> Training:
        """Keep a training, in the hands of a call; one of the same scene that nobody has come back to ends."""
        self.check_free(state.scene_id)
        training = Training(training_id or uuid.uuid4().hex, lease or uuid.uuid4().hex, state, call)
        with self._changed:
            abandoned = self._of_scene(state.scene_id)
            if abandoned is not None:
                del self._trainings[abandoned.training_id]
            self._trainings[training.training_id] = training
        try:
            self.settle()
        except BusyError:
            self.forget(training)
            raise
        return training

    def find(self, training_id: str, lease: str) -> Training | None:
        """The training of a name, if it is here; a wrong lease is answered as a wrong name."""
        with self._changed:
            training = self._trainings.get(training_id)
        if training is not None and not hmac.compare_digest(training.lease.encode(), lease.encode()):
            raise TrainingLostError(training_id)
        return training

    @contextmanager
    def held(self, training: Training, call: Call) -> Iterator[None]:
        """Have a training in the hands of a call; whoever had it before is sent away first."""
        self._take(training, call)
        try:
            yield
        finally:
            with self._changed:
                training.holder = None
                training.used = time.monotonic()
                self._changed.notify_all()

    def settle(self) -> None:
        """Make room after a training came or grew; BusyError if all that there are are in use."""
        while self.bytes > self._limit_bytes and self.drop_oldest(keep_newest=False):
            pass
        self._budget.settle(self)
        if self.bytes > self._limit_bytes or self._budget.is_exceeded:
            raise BusyError(f"trainings take {self.bytes} bytes, more than they may", _RETRY_SECONDS)

    def drop_oldest(self, *, keep_newest: bool) -> bool:
        """Drop the training that nobody has had for longest; False if all are in use."""
        with self._changed:
            idle = sorted((t for t in self._trainings.values() if t.holder is None), key=lambda t: t.used)
            if len(idle) <= keep_newest:
                return False
            del self._trainings[idle[0].training_id]
            return True

    def forget(self, training: Training) -> None:
        """Drop one; no harm if it has gone."""
        with self._changed:
            self._trainings.pop(training.training_id, None)

    def clear(self) -> None:
        """Drop all."""
        with self._changed:
            self._trainings.clear()

    def expire(self) -> None:
        """Drop those that nobody came back to."""
        with self._changed:
            for training in list(self._trainings.values()):
                if training.holder is None and _idle(training) > self._idle_seconds:
                    del self._trainings[training.training_id]

    def _take(self, training: Training, call: Call) -> None:
        with self._changed:
            if training.holder is call:
                return
            if training.holder is not None:
                training.holder.cancel("the training was taken up by another call")
            if not self._changed.wait_for(lambda: training.holder is None, _HANDOVER_SECONDS):
                raise TrainingHeldError(training.state.scene_id)
            if training.training_id not in self._trainings:
                raise TrainingLostError(training.training_id)
            training.holder = call

    def _of_scene(self, scene_id: str) -> Training | None:
        return next((t for t in self._trainings.values() if t.state.scene_id == scene_id), None)


def _idle(training: Training) -> float:
    return time.monotonic() - training.used
