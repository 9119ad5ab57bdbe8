"""The photographs of a fit's steps: small ones first, then those of full size."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from lumigrad.client.fitting.shot import Shot


@dataclass(frozen=True)
class Schedule:
    """The view of each step of a training whose views are the photographs, and after them the same at half the size.

    Attributes:
        photographs: number of photographs.
        coarse: number of steps at pace 1, from the first on, whose photographs have half the size.
        seed: seed of the order.
    """

    photographs: int
    coarse: int
    seed: int

    def shots(self, fitted: Sequence[Shot]) -> list[Shot]:
        """The training's views."""
        return [*fitted, *(shot.halved for shot in fitted)] if self.coarse else list(fitted)

    def views(self, first: int, count: int, pace: float = 1.0) -> list[list[int]]:
        """The views of `count` steps from step `first` on: each photograph once before any is repeated.

        `pace` is how fast schedules pass, see `Trainer.steps`.
        """
        return [[self._view(step, step * pace < self.coarse)] for step in range(first, first + count)]

    def _view(self, step: int, is_coarse: bool) -> int:
        epoch, place = divmod(step, self.photographs)
        order = list(range(self.photographs))
        random.Random(f"{self.seed}:{epoch}").shuffle(order)
        return order[place] + (self.photographs if is_coarse else 0)
