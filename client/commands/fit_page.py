"""The page of `lumigrad fit --view`: the scene while it is fitted."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import monotonic

import viser

from lumigrad.client.client import Client
from lumigrad.client.commands.view_page import viewpoints
from lumigrad.client.datasets import Capture
from lumigrad.client.errors import ResourceExhausted
from lumigrad.client.fitting.pacing import Pacing
from lumigrad.client.fitting.recipe import Recipe
from lumigrad.client.training.trainer import Trainer
from lumigrad.client.values.handle import SceneHandle
from lumigrad.client.viewer.lens import Viewpoint
from lumigrad.client.viewer.painter import Painter
from lumigrad.client.viewer.session import Session
from lumigrad.client.viewer.viewer import Viewer

_HOST, _PORT, _PICTURES_PER_SECOND = "127.0.0.1", 8080, 30.0
# Seconds between updates of the scene.
_PERIOD_S = 1.0
_MOST_STEPS = 1000


class LiveScene:
    """Shows the scene of a training in all browsers, about once a second.

    Attributes:
        handle: the stored scene, in its newest version.
        steps: number of steps before the next `show`.
    """

    def __init__(self, viewer: Viewer, client: Client, trainer: Trainer, pacing: Pacing, recipe: Recipe) -> None:
        """Publishes the training's scene, or puts it if the worker has no room for versions."""
        self._viewer, self._pacing, self._recipe = viewer, pacing, recipe
        self._text: viser.GuiHtmlHandle = viewer.server.gui.add_html("", order=-0.5)
        self._shown_at, self._shown_step = monotonic(), trainer.step_number
        self.steps = 1
        # Whether the worker has refused a newer version.
        self._is_last = False
        try:
            self.handle = _newest(trainer)
        except ResourceExhausted:
            self.handle, self._is_last = client.put(trainer.scene()), True

    def show(self, trainer: Trainer, psnr: float) -> None:
        """Shows the scene after some steps, if there are browsers; `psnr` is in decibels."""
        now, number = monotonic(), trainer.step_number
        rate = (number - self._shown_step) / max(now - self._shown_at, 1e-6)
        self.steps = min(max(round(rate * _PERIOD_S), 1), _MOST_STEPS)
        self._shown_at, self._shown_step = now, number
        sessions = self._viewer.sessions
        if not sessions:
            return
        if not self._is_last:
            try:
                self.handle = _newest(trainer)
            except ResourceExhausted:
                self._is_last = True
        score = f"{self._recipe.compared}: {psnr:.1f} dB"
        text = f"{self._pacing.text(number)}, {score}, {self.handle.count:,} {self._recipe.noun}"
        if self._is_last:
            text += "; the picture no longer changes: the worker has no room for newer versions"
        self._text.content = f'<div style="opacity:0.8;padding:0 0.6em 0.5em;font-size:0.85em">{text}</div>'
        for session in sessions:
            session.refresh()


def _newest(trainer: Trainer) -> SceneHandle:
    """Publishes the training's scene; returns a handle of the version that is the newest when it is rendered."""
    return replace(trainer.publish(), version=0)


@contextmanager
def watched(
    client: Client, trainer: Trainer, recipe: Recipe, pacing: Pacing, capture: Capture, name: str
) -> Iterator[LiveScene]:
    """Opens the page for the duration of a `with` block.

    Args:
        client: a client of the worker.
        trainer: the training, which is used only here and by `LiveScene.show`.
        recipe: the recipe of the fit.
        pacing: its progress.
        capture: the photographs.
        name: name of the scene's file.
    """
    views = viewpoints(capture)
    first = replace(Viewpoint.of(capture.views[0].camera, capture.focus), up=capture.up)
    settings = {name: value for name, value in recipe.looks.items() if name != "background"}
    settings |= {"primitive": recipe.primitive} if recipe.kind == "gaussians" else {}
    with Viewer(_HOST, _PORT, first) as viewer:
        live = LiveScene(viewer, client, trainer, pacing, recipe)
        viewer.show_headline(f"fit: {name}", {"photographs": f"{len(capture):,}", "worker": client.target})

        def begin(browser: viser.ClientHandle) -> Session:
            painter = Painter(client, lambda: live.handle, recipe.kind, settings)
            return Session(
                browser, painter, first, views, recipe.background.color,
                title=name, scene=None, target_s=1 / _PICTURES_PER_SECOND, is_solid=False,
            )  # fmt: skip

        viewer.serve(begin)
        print(f"watch it: {viewer.url}", file=sys.stderr, flush=True)
        yield live
