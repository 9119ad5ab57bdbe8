"""The loop of a fit: steps on the worker, with regular previews."""

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

# The number of photographs in a preview.
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
    """Runs steps up to number `last`, or until `stopped`.

    Args:
        client: a client of the trainer's worker.
        trainer: trains the scene.
        last: total number of steps.
        every: steps between previews, at which the scene is saved too.
        shots: shots to choose previews from.
        scene_path: file of the saved scene.
        journal: records each step.
        stopped: ends the loop after the steps in flight.

    Returns:
        The final scene, which is also saved.
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
        # The client's copy is needed for the depth range of spheres.
        handle = replace(trainer.publish(), scene=scene)
        preview = side_by_side([pictures(client, handle, shown), [shot.photograph for shot in shown]])
        journal.preview(trainer.step_number, preview)
    return found


@contextmanager
def stop_on_interrupt() -> Iterator[threading.Event]:
    """Yields an event that the first Ctrl-C sets; the second one raises KeyboardInterrupt."""
    stopped = threading.Event()

    def stop(number: int, frame: Any) -> None:
        stopped.set()
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)
