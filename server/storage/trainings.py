"""The trainings of a tenant: one for a scene at a time, each in the hands of one call at a time."""

from __future__ import annotations

import hmac
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from lumigrad.server.core.accounts import Account, Reservation
from lumigrad.server.core.call import Call
from lumigrad.server.core.errors import DeviceMemoryError, TrainingHeldError, TrainingLostError
from lumigrad.server.device.memory import Cost, DeviceMemory

# A client whose connection broke has so long to come back before another may train the scene.
_RETURN_SECONDS = 60.0
# For the call that has a training to let go of it: it is between two parts of its work soon.
_HANDOVER_SECONDS = 30.0
# How often a call that waits for a training looks whether it is still wanted.
_LOOK_SECONDS = 0.2


@dataclass(frozen=True)
class Footprint:
    """Bytes of a training.

    Attributes:
        row_bytes: Of each primitive.
        fixed_bytes: Of everything else: views, their targets, what is refined of them.
        working_bytes: Of copies that are made while it begins, of each primitive.
    """

    row_bytes: int
    fixed_bytes: int
    working_bytes: int

    def bytes(self, count: int) -> int:
        """With so many primitives."""
        return self.fixed_bytes + self.row_bytes * count


class Resizer(Protocol):
    """What changes a reservation, once it has made room for it."""

    def resize(self, reservation: Reservation, nbytes: int) -> None:
        """Reserve another amount; BusyError, and nothing changed, if there is too little left."""

    def grow(self, reservation: Reservation, nbytes: int) -> None:
        """The same, on the device's thread; DeviceMemoryError if the device has too little memory left."""


class Room:
    """The memory that one training has reserved."""

    def __init__(self, footprint: Footprint, count: int, reservation: Reservation, store: Resizer) -> None:
        """Reserve what it takes to begin with so many primitives."""
        self._footprint = footprint
        self._count = count
        self._reservation = reservation
        self._store = store
        store.resize(reservation, footprint.bytes(count) + footprint.working_bytes * count)

    @property
    def bytes(self) -> int:
        """What is reserved now."""
        return self._reservation.amount

    @property
    def copied_bytes(self) -> int:
        """What a step takes for a while that has density control: the rows copied, and as many that come of them."""
        return 2 * self._footprint.row_bytes * self._count

    def grow(self, count: int) -> None:
        """Reserve what so many primitives take, if they are more; then `settle`. Only on the device's thread."""
        self._store.grow(self._reservation, self._footprint.bytes(max(self._count, count)))

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Have a DeviceMemoryError of work that fills this room name the room's bytes too: they are taken already."""
        try:
            yield
        except DeviceMemoryError as error:
            asked, available = (nbytes + self.bytes for nbytes in (error.asked_bytes, error.available_bytes))
            raise DeviceMemoryError(asked, max(0, available), error.retry_seconds) from error

    def settle(self, count: int) -> None:
        """Reserve what so many primitives take, and no more; they are there."""
        self._count = count
        self._reservation.resize(self._footprint.bytes(count))

    def release(self) -> None:
        """Give everything back: the training is no more."""
        self._reservation.release()


class State(Protocol):
    """What a store needs to know of a training's state."""

    @property
    def scene_id(self) -> str:
        """The scene that is trained."""

    @property
    def room(self) -> Room:
        """The memory that is reserved."""


S = TypeVar("S", bound=State)


@dataclass(eq=False)
class Training(Generic[S]):
    """A training on this worker, or one that its holder is just making.

    Attributes:
        start_id: What the client that began it calls its start; empty: nothing.
        scene_id: Of the scene that is trained; empty until a snapshot has told.
        holder: The call that has it now.
        holder_number: How many callers have had it.
        used: When the last one let go of it, by the monotonic clock.
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
    def is_made(self) -> bool:
        """Whether it has a state."""
        return self._state is not None

    @property
    def state(self) -> S:
        """What is trained; only of one that is made."""
        assert self._state is not None
        return self._state

    @property
    def bytes(self) -> int:
        """Memory that it has reserved."""
        return 0 if self._state is None else self._state.room.bytes

    def release(self) -> None:
        """Give the memory back: it is not here any more, and nobody has it."""
        if self._state is not None:
            self._state.room.release()

    def replace(self, state: S | None) -> S | None:
        """Go on with another state; returns the one before."""
        before, self._state = self._state, state
        return before


class TrainingStore(Generic[S]):
    """Trainings of a tenant by their unguessable names, whose memory one account of all tenants counts."""

    def __init__(self, account: Account, tenant: str, idle_seconds: float, memory: DeviceMemory) -> None:
        self._account = account
        self._tenant = tenant
        self._idle_seconds = idle_seconds
        self._memory = memory
        self._changed = threading.Condition()
        self._trainings: dict[str, Training[S]] = {}

    def __len__(self) -> int:
        return len(self._trainings)

    def reserve(self, nbytes: int) -> Reservation:
        """Take memory for something of a training; BusyError if there is too little left."""
        reservation = Reservation(self._account, self._tenant)
        self.resize(reservation, nbytes)
        return reservation

    def resize(self, reservation: Reservation, nbytes: int) -> None:
        """Take another amount instead; BusyError, and nothing changed, if there is too little left.

        Trainings that nobody has make room, the one that nobody has had for longest first, if that is enough.
        """
        with self._changed:
            idle = sorted((t for t in self._trainings.values() if t.holder is None), key=lambda t: t.used)
            more = nbytes - reservation.amount
            if self._account.lacking(self._tenant, more) <= sum(training.bytes for training in idle):
                while idle and self._account.lacking(self._tenant, more):
                    self._remove(idle.pop(0))
        reservation.resize(nbytes)

    def grow(self, reservation: Reservation, nbytes: int) -> None:
        """The same on the device's thread; DeviceMemoryError, and nothing changed, if the device has too little left.

        This is for work under way: what is known before it begins belongs to its cost.
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
    def room(self, footprint: Footprint, count: int) -> Iterator[Room]:
        """Reserve the memory of a training that is made meanwhile; it is given back if that fails."""
        room = Room(footprint, count, Reservation(self._account, self._tenant), self)
        try:
            yield room
            room.settle(count)
        except BaseException:
            room.release()
            raise

    @contextmanager
    def begin(self, scene_id: str, start_id: str, call: Call) -> Iterator[Training[S]]:
        """Have a new training of a scene in the hands of a call, which makes its state.

        One that was begun with the same `start_id` is taken up instead. TrainingHeldError if another client trains the
        scene.
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
        """Have a training in the hands of a call; the call that had it before is cancelled, and lets go first.

        One that is not here has no state, which is for its new holder to make from a snapshot. A wrong lease is
        answered as a wrong name. `holder` is the number of the holder that the caller was, 0 if it was none:
        TrainingHeldError if there has been another since.
        """

        def found() -> Training[S] | None:
            training = self._trainings.get(training_id)
            if training is not None and not hmac.compare_digest(training.lease.encode(), lease.encode()):
                raise TrainingLostError(training_id)
            return training

        with self._held(found, lambda: Training(training_id, lease, holder_number=holder), holder, call) as training:
            yield training

    def keep(self, training: Training[S], state: S) -> None:
        """Give a training the state that its holder has made; one of its scene that nobody came back to ends."""
        try:
            with self._changed:
                self._check_kept(training)
                for abandoned in self._others(state.scene_id, training):
                    self._remove(abandoned)
                training.scene_id = state.scene_id
                training.replace(state)
        except BaseException:
            state.room.release()
            raise

    def vacate(self, training: Training[S]) -> None:
        """Drop the state of a training, and give its memory back, for its holder to make another one."""
        with self._changed:
            self._check_kept(training)
            before = training.replace(None)
        if before is not None:
            before.room.release()

    def check_kept(self, training: Training[S]) -> None:
        """Raise a TrainingLostError if a training is not here any more, or another one of its name is."""
        with self._changed:
            self._check_kept(training)

    def forget(self, training: Training[S]) -> None:
        """Drop one; no harm if it has gone, or another one of its name is here."""
        with self._changed:
            if self._trainings.get(training.training_id) is training:
                self._remove(training)

    def clear(self) -> None:
        """Drop all."""
        with self._changed:
            for training in list(self._trainings.values()):
                self._remove(training)

    def expire(self) -> None:
        """Drop those that nobody came back to."""
        with self._changed:
            for training in list(self._trainings.values()):
                if training.holder is None and _idle(training) > self._idle_seconds:
                    self._remove(training)

    def _remove(self, training: Training[S]) -> None:
        """Take one out; what it has reserved is given back now, or once the call that has it lets go."""
        del self._trainings[training.training_id]
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
            self._trainings[training.training_id] = training
        try:
            yield training
        finally:
            with self._changed:
                training.holder = None
                training.used = time.monotonic()
                if not training.is_made:
                    self.forget(training)
                if self._trainings.get(training.training_id) is not training:
                    training.release()
                self._changed.notify_all()

    def _released(self, found: Callable[[], Training[S] | None], holder: int, call: Call) -> Training[S] | None:
        """What `found` gives, once the call that had it has let go; None: there is nothing."""
        until = time.monotonic() + _HANDOVER_SECONDS
        while (training := found()) is not None:
            if 0 < holder < training.holder_number:
                raise TrainingHeldError(training.scene_id)
            if training.holder is None:
                break
            training.holder.cancel("the training was taken up by another call")
            if time.monotonic() > until:
                raise TrainingHeldError(training.scene_id)
            self._changed.wait(_LOOK_SECONDS)
            call.check()
        return training

    def _others(self, scene_id: str, own: Training[S] | None) -> list[Training[S]]:
        """The other trainings of a scene, if nobody has them nor may come back; else a TrainingHeldError."""
        others = [t for t in self._trainings.values() if t.scene_id == scene_id and t is not own]
        if any(other.holder is not None or _idle(other) < _RETURN_SECONDS for other in others):
            raise TrainingHeldError(scene_id)
        return others

    def _check_kept(self, training: Training[S]) -> None:
        if self._trainings.get(training.training_id) is not training:
            raise TrainingLostError(training.training_id)


def _idle(training: Training[Any]) -> float:
    return time.monotonic() - training.used
