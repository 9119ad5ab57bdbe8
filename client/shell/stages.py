"""Shows the progress of work in stages on standard error."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import Any

# A file or a pipe gets so many lines of a stage.
_LINES = 10


def bars() -> Any:
    """Returns the class of progress bars; None without tqdm, or where standard error is a file or a pipe."""
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm if sys.stderr.isatty() else None


def say_progress(stage: str, before: int, done: int, total: int, noun: str) -> None:
    """Prints how much of a stage is done, if another tenth of it is."""
    if done * _LINES // total > before * _LINES // total:
        print(f"{stage}: {done:,} of {total:,} {noun}{'' if total == 1 else 's'}", file=sys.stderr, flush=True)


class Stages:
    """Shows a progress bar per stage on standard error, or lines where there are no bars."""

    def __init__(self) -> None:
        self._shown = ExitStack()
        self._stage, self._done = "", 0
        self._bar: Any = None

    def __enter__(self) -> Stages:
        return self

    def __exit__(self, *_: object) -> None:
        self._shown.close()

    def show(self, stage: str, done: int, total: int) -> None:
        """Shows how much of a stage is done."""
        if stage != self._stage:
            self._shown.close()
            self._stage, self._done, bar = stage, 0, bars()
            made = bar and bar(total=total, desc=stage, unit="Gaussian", unit_scale=True, file=sys.stderr)
            self._bar = made and self._shown.enter_context(made)
        if self._bar is None:
            say_progress(stage, self._done, done, total, "Gaussian")
        else:
            self._bar.update(done - self._done)
        self._done = done
