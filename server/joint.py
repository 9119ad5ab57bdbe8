"""Work that may be done at one with other work."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Joint(Generic[T]):
    """How work is done at one with other work that waits.

    Attributes:
        key: Equal of work that fits together.
        fill: The share that this part takes of the most that is done at once.
        part: What `run` is to know of it.
        run: Does several parts at once; returns their results, in their order.
    """

    key: Hashable
    fill: float
    part: Any
    run: Callable[[Sequence[Any]], Sequence[T]]
