"""The loop of a fit: steps on the worker, and now and then a look at the scene."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from lumigrad.client.client import Client
from lumigrad.client.fitting.evaluation import pictures, samples, side_by_side
from lumigrad.client.fitting.journal import Journal
from lumigrad.client.fitting.shot import Shot
from lumigrad.client.shell.files import naming
from lumigrad.client.training.trainer import Trainer
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.spheres import Spheres

# Held-out photographs in a preview.
_SHOWN = 2


def fit(
    client: Client,
    trainer: Trainer,
    last: int,
    every: int,
    shots: Sequence[Shot],
    scene_path: Path,
    journal: Journal,
    stopped: threading.Event,
) -> Gaussians | Spheres:
    """Makes steps until there were `last` of them, or until `stopped`.

    Args:
        client: of the trainer's worker.
        trainer: of the scene.
        last: number of steps in all.
        every: so many steps there is a preview, and the scene is saved.
        shots: some of them are shown in the previews.
        scene_path: where the scene is saved.
        journal: hears of each step.
        stopped: lets the loop end after the steps that are on their way.

    Returns:
        The scene as it is then, which is also saved.
    """
    shown = [shots[index] for index in samples(shots, _SHOWN)]
    found: Gaussians | Spheres | None = None
    while found is None or (trainer.step_number < last and not stopped.is_set()):
        for step in trainer.steps(min(every - trainer.step_number % every, last - trainer.step_number)):
            journal.step(step)
            if stopped.is_set():
                break
        scene = trainer.scene()
        assert isinstance(scene, Gaussians | Spheres)
        found = scene
        with naming(scene_path):
            found.save(scene_path)
        # What a rendering takes from the scene itself, spheres' depth range, is read off the client's copy.
        handle = replace(trainer.publish(), scene=scene)
        preview = side_by_side([pictures(client, handle, shown), [shot.photograph for shot in shown]])
        journal.preview(trainer.step_number, preview)
    return found


@contextmanager
def stop_on_interrupt() -> Iterator[threading.Event]:
    """Yields what Ctrl-C sets the first time; the second time it is a KeyboardInterrupt."""
    stopped = threading.Event()

    def stop(number: int, frame: Any) -> None:
        stopped.set()
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)
