"""Runs a fit: steps on the worker, with regular previews, a progress bar and scalars for TensorBoard."""

from __future__ import annotations

import signal
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from lumigrad.client.base.arrays import Array
from lumigrad.client.base.extras import require
from lumigrad.client.base.replacing import replaced
from lumigrad.client.client import Client
from lumigrad.client.errors import ResourceExhausted
from lumigrad.client.fitting.evaluation import pictures, samples, side_by_side
from lumigrad.client.fitting.event_log import EventLog
from lumigrad.client.fitting.pacing import Pacing
from lumigrad.client.fitting.recipe import Recipe, Schedule
from lumigrad.client.fitting.shot import Shot
from lumigrad.client.formats.beside import write_offset
from lumigrad.client.pictures import levels_of, write_image
from lumigrad.client.shell.exits import naming
from lumigrad.client.training.results import StepResult
from lumigrad.client.training.trainer import Trainer
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.handle import SceneHandle
from lumigrad.client.values.spheres import Spheres

# The number of photographs in a preview.
_SHOWN = 2


class Live(Protocol):
    """Shows the scene during a fit.

    Attributes:
        steps: number of steps before the next `show`.
    """

    steps: int

    def show(self, trainer: Trainer, psnr: float) -> None:
        """Shows the trainer's scene between two steps; `psnr` is the mean of the latest steps, decibels."""


def fit(
    client: Client,
    trainer: Trainer,
    recipe: Recipe,
    schedule: Schedule,
    pacing: Pacing,
    shots: Sequence[Shot],
    scene_path: Path,
    journal: Journal,
    stopped: threading.Event,
    live: Live | None = None,
) -> Gaussians | Spheres:
    """Runs a fit until `pacing` ends it, or until `stopped`; returns the final scene, which is also saved.

    Between the rounds of `pacing`, a preview of some shots is made and the scene is saved; `live` shows it more often.
    """
    shown = [shots[index] for index in samples(shots, _SHOWN)]
    found: Gaussians | Spheres | None = None
    may_publish = True
    while found is None or not (pacing.is_over(trainer.step_number) or stopped.is_set()):
        _advance(trainer, schedule, pacing, journal, stopped, live)
        scene = trainer.scene()
        assert isinstance(scene, Gaussians | Spheres)
        if recipe.is_flat and isinstance(scene, Gaussians) and scene.scales is not None:
            # A training stores logarithms of scales, so third scales are not exactly 0.
            scene = replace(scene, scales=scene.scales[:, :2])
        found = scene
        # Both files are written before the scene replaces the old one, so a full disk changes neither.
        with naming(scene_path), replaced(scene_path) as new:
            found.save(new)
            write_offset(scene_path, recipe.offset)
        handle = _published(trainer, scene) if may_publish else None
        may_publish = handle is not None
        rendered = [levels_of(picture) for picture in pictures(client, handle or scene, shown, recipe.looks)]
        preview = side_by_side([rendered, [shot.read().pixels for shot in shown]])
        journal.preview(trainer.step_number, preview)
    return found


def _published(trainer: Trainer, scene: Gaussians | Spheres) -> SceneHandle | None:
    """Publishes the scene; returns None if the worker has no room for it. Each preview then sends the scene itself."""
    try:
        # The handle needs a copy of the scene to determine the depth range of spheres.
        return replace(trainer.publish(), scene=scene)
    except ResourceExhausted:
        return None


def _advance(
    trainer: Trainer, schedule: Schedule, pacing: Pacing, journal: Journal, stopped: threading.Event, live: Live | None
) -> None:
    """Runs the steps up to the next preview, or until `stopped`."""
    for most, pace in pacing.parts(lambda: trainer.step_number):
        views = schedule.views(trainer.step_number, min(most, most if live is None else live.steps), pace)
        for step in trainer.steps(len(views), views=views, pace=pace):
            journal.step(step)
            if stopped.is_set():
                return
        if live is not None:
            live.show(trainer, journal.psnr)


@contextmanager
def stop_on_interrupt() -> Iterator[threading.Event]:
    """Yields an event that the first Ctrl-C or SIGTERM sets; the second one has its usual effect."""
    stopped = threading.Event()

    def stop(number: int, frame: Any) -> None:
        stopped.set()
        restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        restore()


# The bar shows the mean over up to this many steps, about one pass over all photographs.
_MEMORY = 100
_BAR_EVERY, _SCALARS_EVERY = 10, 10


class Journal:
    """Reports the steps of a fit in a progress bar, previews and TensorBoard."""

    def __init__(
        self, folder: Path, first: int, pacing: Pacing, views: int, recipe: Recipe, log_folder: Path | None
    ) -> None:
        """Starts at step `first`; `log_folder` is the folder for TensorBoard, None: no log."""
        self._folder, self._pacing, self._recipe = folder, pacing, recipe
        tqdm = require("tqdm", "fit", "the progress of a fit").tqdm
        facts = {"total": pacing.total, "initial": pacing.done(first), "unit": pacing.unit}
        # If standard error is not a terminal, there is no bar, but a line with each preview.
        self._bar = tqdm(desc="fitting", bar_format=pacing.bar, file=sys.stderr, disable=None, **facts)
        self._decibels: deque[float] = deque(maxlen=min(max(views, 1), _MEMORY))
        self._log = None if log_folder is None else EventLog(log_folder)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
        if self._log is not None:
            self._log.close()

    @property
    def psnr(self) -> float:
        """The mean PSNR of the latest steps, decibels."""
        return float(np.mean(self._decibels)) if self._decibels else float("nan")

    @property
    def _score(self) -> str:
        return f"{self._recipe.compared}: {self.psnr:.1f} dB"

    def step(self, step: StepResult) -> None:
        """Records a step."""
        self._decibels.append(step.psnr)
        self._bar.update(self._pacing.done(step.number + 1) - self._bar.n)
        if step.number % _BAR_EVERY == 0:
            self._bar.set_postfix_str(f"{self._score}, {step.count:,} {self._recipe.noun}", refresh=False)
        if self._log is not None and step.number % _SCALARS_EVERY == 0:
            values = {"loss": step.loss, "psnr": self.psnr, "count": step.count, "visible": step.visible, **step.terms}
            self._log.scalars(values, step.number)

    def preview(self, number: int, picture: Array) -> None:
        """Records a preview [H, W, 3] of the scene after step `number`."""
        if self._bar.disable:
            print(f"fitting: {self._pacing.text(number)}, {self._score}", file=sys.stderr, flush=True)
        write_image(self._folder / f"preview_{number:06d}.jpg", picture)
        if self._log is not None:
            self._log.picture(picture, number)
