"""Shows the progress of work in stages on standard error."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import Any


class Stages:
    """Shows a progress bar per stage on standard error, if that is a terminal and tqdm is installed."""

    def __init__(self) -> None:
        self._bars = ExitStack()
        self._stage = ""
        self._bar: Any = None

    def __enter__(self) -> Stages:
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.close()

    def show(self, stage: str, done: int, total: int) -> None:
        """Shows how much of a stage is done."""
        try:
            from tqdm import tqdm
        except ImportError:
            return
        if stage != self._stage:
            self._bars.close()
            bar = tqdm(total=total, desc=stage, unit="Gaussian", unit_scale=True, file=sys.stderr, disable=None)
            self._stage, self._bar = stage, self._bars.enter_context(bar)
        self._bar.update(done - self._bar.n)
