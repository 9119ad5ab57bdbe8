"""The progress of a fit: a progress bar, scalars for TensorBoard, and previews."""

from __future__ import annotations

import sys
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from lumigrad.client.base.arrays import Array
from lumigrad.client.base.extras import require
from lumigrad.client.pictures import write_image
from lumigrad.client.training.results import StepResult

# The bar shows the mean over about one pass over all photographs.
_MEMORY = 100
_BAR_EVERY, _SCALARS_EVERY = 10, 10


class Journal:
    """Shows steps as they come."""

    def __init__(self, folder: Path, first: int, last: int, views: int, log_folder: Path | None) -> None:
        """Starts at step `first` of `last`; `log_folder` is TensorBoard's, None: no log."""
        self._folder = folder
        tqdm = require("tqdm", "fit", "the progress of a fit").tqdm
        # Fewer updates where standard error is a file.
        interval = 0.1 if sys.stderr.isatty() else 10.0
        pace = {"mininterval": interval, "maxinterval": 60.0}
        self._bar = tqdm(total=last, initial=first, desc="fitting", unit="step", file=sys.stderr, **pace)
        self._decibels: deque[float] = deque(maxlen=min(max(views, 1), _MEMORY))
        self._writer: Any = None
        if log_folder is not None:
            self._writer = require("tensorboardX", "fit", "metrics for TensorBoard").SummaryWriter(str(log_folder))

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
        if self._writer is not None:
            self._writer.close()

    @property
    def psnr(self) -> float:
        """The mean PSNR of the latest steps, decibels."""
        return float(np.mean(self._decibels)) if self._decibels else float("nan")

    def step(self, step: StepResult) -> None:
        """Records a step."""
        self._decibels.append(step.psnr)
        self._bar.update()
        if step.number % _BAR_EVERY == 0:
            self._bar.set_postfix(PSNR=f"{self.psnr:.1f} dB", count=f"{step.count:,}", refresh=False)
        if self._writer is not None and step.number % _SCALARS_EVERY == 0:
            values = {"loss": step.loss, "psnr": self.psnr, "count": step.count, "visible": step.visible, **step.terms}
            for name, value in values.items():
                self._writer.add_scalar(f"fit/{name}", value, step.number)

    def preview(self, number: int, picture: Array) -> None:
        """Records an image [H, W, 3] of the scene after a step."""
        write_image(self._folder / f"preview_{number:06d}.jpg", picture)
        if self._writer is not None:
            self._writer.add_image("fit/preview", picture, number, dataformats="HWC")
