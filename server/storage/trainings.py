"""The trainings of a tenant: at most one per scene, each held by one call at a time."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from lumigrad.server.core.accounts import Account, Reservation
from lumigrad.server.core.call import Call
from lumigrad.server.core.errors import DeviceMemoryError, StoppingError, TrainingHeldError, TrainingLostError
from lumigrad.server.device.memory import Cost, DeviceMemory
from lumigrad.server.storage.spool import SpoolMemory

# The time for which a scene stays reserved for a client whose connection broke.
_RETURN_SECONDS = 60.0
# The number of idle trainings that a tenant may keep, however small: each takes some host memory that no reservation
# counts.
_MOST_IDLE = 256
# The time that a cancelled holder has to release a training at its next check.
_HANDOVER_SECONDS = 30.0
# How often a call that waits for a training checks for its own end.
_LOOK_SECONDS = 0.2


@dataclass(frozen=True)
class Footprint:
    """The memory that a training takes.

    Attributes:
        row_bytes: Bytes per primitive.
        fixed_bytes: Bytes of everything else: views, their target images, their refined poses and exposures.
        working_bytes: Bytes per primitive of temporary copies at the start.
    """

    row_bytes: int
    fixed_bytes: int
    working_bytes: int

    def bytes(self, count: int) -> int:
        """Return the bytes with `count` primitives."""
        return self.fixed_bytes + self.row_bytes * count


@contextmanager
def counted(reserved_bytes: int) -> Iterator[None]:
    """Add bytes that are already reserved to those that a DeviceMemoryError reports."""
    try:
        yield
    except DeviceMemoryError as error:
        asked, available = (nbytes + reserved_bytes for nbytes in (error.asked_bytes, error.available_bytes))
        raise DeviceMemoryError(asked, max(0, available), error.retry_seconds) from error


class TrainingReservation:
    """The memory reserved for one training."""

    def __init__(self, footprint: Footprint, count: int, reservation: Reservation, store: TrainingStore[Any]) -> None:
        """Reserve the memory for starting with `count` primitives."""
        self._footprint = footprint
        self._count = count
        self._reservation = reservation
        self._store = store
        # Memory in the spool, if any.
        self._memory: SpoolMemory | None = None
        store.resize(reservation, footprint.bytes(count) + footprint.working_bytes * count)

    @property
    def bytes(self) -> int:
        """The reserved bytes."""
        return self._reservation.amount

    @property
    def copied_bytes(self) -> int:
        """Temporary bytes of a step with density control: a copy of the rows, and as many new rows."""
        return 2 * self._footprint.row_bytes * self._count

    def grow(self, count: int) -> None:
        """Reserve memory for more primitives; call `resize` afterwards. Only on the device's thread."""
        self._store.grow(self._reservation, self._footprint.bytes(max(self._count, count)))

    def resize(self, count: int) -> None:
        """Reserve exactly the memory for the `count` primitives that now exist."""
        self._count = count
        self._reservation.resize(self._footprint.bytes(count))

    def hold(self, memory: SpoolMemory) -> None:
        """Also release this memory in the spool when the reservation is released."""
        self._memory = memory

    def release(self) -> None:
        """Release the reservation."""
        self._reservation.release()
        if self._memory is not None:
            self._memory.release()


class State(Protocol):
    """The part of a training's state that the store uses."""

    @property
    def scene_id(self) -> str:
        """The id of the trained scene."""

    @property
    def reservation(self) -> TrainingReservation:
        """The reserved memory."""


S = TypeVar("S", bound=State)


@dataclass(eq=False)
class Training(Generic[S]):
    """A training on this worker, or one that its holder is creating.

    Attributes:
        start_id: The client's id for its start request; may be empty.
        scene_id: The trained scene; empty until a snapshot is read.
        holder: The call that holds it now.
        holder_number: The number of callers that have held it.
        used: The time at which the last holder released it, by the monotonic clock.
    """

    training_id: str
    lease: str
    start_id: str = ""
    scene_id: str = ""
    holder: Call | None = None
    holder_number: int = 0
    used: float = field(default_factory=time.monotonic)
    _state: S | None = None

    @property
    def key(self) -> tuple[str, str]:
        """Its key in the store. Includes the lease: a call with a wrong one holds no training."""
        return self.training_id, self.lease

    @property
    def is_made(self) -> bool:
        """Whether it has a state yet."""
        return self._state is not None

    @property
    def state(self) -> S:
        """The state; only if `is_made`."""
        assert self._state is not None
        return self._state

    @property
    def bytes(self) -> int:
        """The bytes that it has reserved."""
        return 0 if self._state is None else self._state.reservation.bytes

    def release(self) -> None:
        """Release the memory of a training that is removed and not held."""
        if self._state is not None:
            self._state.reservation.release()

    def replace(self, state: S | None) -> S | None:
        """Set the state; returns the previous one."""
        before, self._state = self._state, state
        return before


class TrainingStore(Generic[S]):
    """A tenant's trainings by unguessable name and lease; one account counts the memory of all tenants' trainings."""

    def __init__(self, account: Account, tenant: str, idle_seconds: float, memory: DeviceMemory) -> None:
        self._account = account
        self._tenant = tenant
        self._idle_seconds = idle_seconds
        self._memory = memory
        self._changed = threading.Condition()
        self._trainings: dict[tuple[str, str], Training[S]] = {}
        self._is_suspended = False

    def __len__(self) -> int:
        return len(self._trainings)

    def reserve(self, nbytes: int) -> Reservation:
        """Reserve bytes for a training; raises BusyError if too little is left."""
        reservation = Reservation(self._account, self._tenant)
        self.resize(reservation, nbytes)
        return reservation

    def resize(self, reservation: Reservation, nbytes: int) -> None:
        """Change the reserved bytes; if too little is left, raises BusyError and changes nothing.

        Removes idle trainings, the longest idle first, if that makes enough room.
        """
        with self._changed:
            idle = self._idle()
            more = nbytes - reservation.amount
            if self._account.lacking(self._tenant, more) <= sum(training.bytes for training in idle):
                while idle and self._account.lacking(self._tenant, more):
                    self._remove(idle.pop(0))
        reservation.resize(nbytes)

    def grow(self, reservation: Reservation, nbytes: int) -> None:
        """Resize a reservation on the device's thread; if memory is short, raise DeviceMemoryError and change nothing.

        Only for running work: memory that is known in advance belongs to the work's cost.
        """
        more = nbytes - reservation.amount
        self.resize(reservation, nbytes)
        if more <= 0:
            return
        try:
            self._memory.make_room(Cost())
        except DeviceMemoryError as error:
            reservation.resize(nbytes - more)
            raise DeviceMemoryError(more, max(0, error.available_bytes + more), error.retry_seconds) from None

    @contextmanager
    def reserved(self, footprint: Footprint, count: int) -> Iterator[TrainingReservation]:
        """Reserve the memory of a training that the `with` block creates; releases it if the block fails."""
        reservation = TrainingReservation(footprint, count, Reservation(self._account, self._tenant), self)
        try:
            yield reservation
            reservation.resize(count)
        except BaseException:
            reservation.release()
            raise

    @contextmanager
    def begin(self, scene_id: str, start_id: str, call: Call) -> Iterator[Training[S]]:
        """Hold a new training of a scene, whose state the call creates.

        Resumes a training with the same `start_id` instead, if there is one. Raises TrainingHeldError if another client
        trains the scene.
        """

        def found() -> Training[S] | None:
            return next((t for t in self._trainings.values() if start_id and t.start_id == start_id), None)

        def made() -> Training[S]:
            self._others(scene_id, None)
            return Training(uuid.uuid4().hex, uuid.uuid4().hex, start_id, scene_id)

        with self._held(found, made, 0, call) as training:
            yield training

    @contextmanager
    def take_up(self, training_id: str, lease: str, holder: int, call: Call) -> Iterator[Training[S]]:
        """Hold a training; the previous holder's call is cancelled and releases it first.

        A training that is not in memory, or has another lease, has no state; the caller creates it from a snapshot with
        this lease. `holder` is the caller's former holder number, or 0; raises TrainingHeldError if there was another
        holder since.
        """
        made: Training[S] = Training(training_id, lease, holder_number=holder)
        with self._held(lambda: self._trainings.get(made.key), lambda: made, holder, call) as training:
            yield training

    def keep(self, training: Training[S], state: S) -> None:
        """Set the state that a holder has created; removes an abandoned training of the same scene."""
        try:
            with self._changed:
                self.check_kept(training)
                for abandoned in self._others(state.scene_id, training):
                    self._remove(abandoned)
                training.scene_id = state.scene_id
                training.replace(state)
        except BaseException:
            state.reservation.release()
            raise

    def vacate(self, training: Training[S]) -> None:
        """Remove a training's state and release its memory, before its holder creates another."""
        with self._changed:
            self.check_kept(training)
            before = training.replace(None)
        if before is not None:
            before.reservation.release()

    def check_kept(self, training: Training[S]) -> None:
        """Raise a TrainingLostError if a training was removed or replaced."""
        if self._trainings.get(training.key) is not training:
            raise TrainingLostError(training.training_id)

    def forget(self, training: Training[S]) -> None:
        """Remove a training; does nothing if it was removed or replaced."""
        with self._changed:
            if self._trainings.get(training.key) is training:
                self._remove(training)

    def clear(self) -> None:
        """Remove all trainings."""
        with self._changed:
            for training in list(self._trainings.values()):
                self._remove(training)

    def suspend(self) -> None:
        """Stop the calls that hold trainings at their next check, and refuse others: the worker is about to stop."""
        with self._changed:
            self._is_suspended = True
            for training in self._trainings.values():
                if training.holder is not None:
                    training.holder.stop()

    def cancel_unread(self) -> None:
        """Cancel calls that hold trainings and whose callers do not take a reply, since these calls run no checks."""
        with self._changed:
            for training in self._trainings.values():
                if training.holder is not None and training.holder.progress.sending.is_on:
                    training.holder.cancel("the worker is stopping, and the caller does not take the reply")

    @property
    def is_held(self) -> bool:
        """Whether a call holds a training."""
        with self._changed:
            return any(training.holder is not None for training in self._trainings.values())

    def released(self) -> list[Training[S]]:
        """Return the trainings that no call holds."""
        with self._changed:
            return self._idle()

    def expire(self) -> None:
        """Remove trainings that were idle for too long."""
        with self._changed:
            for training in list(self._trainings.values()):
                if training.holder is None and _idle(training) > self._idle_seconds:
                    self._remove(training)

    def _idle(self) -> list[Training[S]]:
        """Return the trainings without a holder, the longest idle first."""
        return sorted((t for t in self._trainings.values() if t.holder is None), key=lambda t: t.used)

    def _remove(self, training: Training[S]) -> None:
        """Remove a training; its memory is released now, or when its holder releases it."""
        del self._trainings[training.key]
        if training.holder is None:
            training.release()

    @contextmanager
    def _held(
        self, found: Callable[[], Training[S] | None], made: Callable[[], Training[S]], holder: int, call: Call
    ) -> Iterator[Training[S]]:
        with self._changed:
            training = self._released(found, holder, call) or made()
            training.holder = call
            training.holder_number += holder == 0
            self._trainings[training.key] = training
        try:
            yield training
        finally:
            with self._changed:
                training.holder = None
                training.used = time.monotonic()
                if not training.is_made:
                    self.forget(training)
                if self._trainings.get(training.key) is not training:
                    training.release()
                idle = self._idle()
                if len(idle) > _MOST_IDLE:
                    self._remove(idle[0])
                self._changed.notify_all()

    def _released(self, found: Callable[[], Training[S] | None], holder: int, call: Call) -> Training[S] | None:
        """Return the training that `found` returns, once its holder has released it; None if there is none."""
        until = time.monotonic() + _HANDOVER_SECONDS
        while not self._is_suspended and (training := found()) is not None:
            call.check()
            if 0 < holder < training.holder_number:
                raise TrainingHeldError(training.scene_id)
            if training.holder is None:
                break
            # A call whose connection broke may get here after the one that its client made instead.
            if training.holder.times.created > call.times.created or time.monotonic() > until:
                raise TrainingHeldError(training.scene_id)
            training.holder.cancel("the training was taken up by another call")
            self._changed.wait(_LOOK_SECONDS)
        if self._is_suspended:
            raise StoppingError
        return training

    def _others(self, scene_id: str, own: Training[S] | None) -> list[Training[S]]:
        """Return a scene's abandoned trainings; raises TrainingHeldError if any is held or its client may return."""
        others = [t for t in self._trainings.values() if t.scene_id == scene_id and t is not own]
        if any(other.holder is not None or _idle(other) < _RETURN_SECONDS for other in others):
            raise TrainingHeldError(scene_id)
        return others


def _idle(training: Training[Any]) -> float:
    return time.monotonic() - training.used
