"""What a training takes of the memory, by its shapes: reserved before anything is allocated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from lumigrad.server.core.accounts import Reservation
from lumigrad.server.core.errors import DeviceMemoryError
from lumigrad.server.engines.content import Shapes
from lumigrad.server.training.density import DensityState
from lumigrad.server.training.parameters import Parameters, Refinement
from lumigrad.server.training.spec import EXPOSURES, POSES, TrainingPlan

if TYPE_CHECKING:
    from lumigrad.server.training.views import Views

# Numbers per view that are refined.
_REFINED = {POSES: 6, EXPOSURES: 12}


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

    @staticmethod
    def of(plan: TrainingPlan, shapes: Shapes, views: Views) -> Footprint:
        """Of a training of tensors of these shapes."""
        density = 0 if plan.density is None else DensityState.row_bytes(plan.density)
        refined = sum(Refinement.row_bytes(_REFINED[name]) for name in _REFINED if name in plan.optimizer.rates)
        return Footprint(
            row_bytes=Parameters.row_bytes(shapes, plan.optimizer) + density,
            fixed_bytes=views.bytes + len(views) * refined,
            working_bytes=Parameters.working_bytes(shapes),
        )

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
