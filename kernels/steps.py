"""Work in steps, between which other work may run on the same thread."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

T = TypeVar("T")
# Work that yields before each of its parts, which take at most about a tenth of a second, and returns its result.
Steps = Generator[None, None, T]


def complete(steps: Steps[T], before_part: Callable[[], object] | None = None) -> T:
    """Runs all steps and returns their result; `before_part` is called before each part, and may raise."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        if before_part is not None:
            before_part()
