"""Helpers for tests of the viewer."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from lumigrad.client import Client, Gaussians
from lumigrad.client.commands.view import command
from support.chromium import canvas_pixels, opened_page

if TYPE_CHECKING:
    # Imports that need viser, without which the tests are skipped.
    from lumigrad.client.viewer.lens import Lens
    from lumigrad.client.viewer.viewer import Viewer

SECONDS = 120.0


def wait_for(condition: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """Waits until a condition is true; returns its value."""
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until
        time.sleep(0.05)
    return found


def options(target: str, *arguments: str) -> argparse.Namespace:
    """Options of `lumigrad view`, with a free port."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args([*arguments, "--target", target, "--port", "0"])


WIDTH, HEIGHT = 720, 400
SMOOTH_DB = 30.0


def blobs(count: int = 300) -> Gaussians:
    """Soft balls of many colours around the origin; every side looks different."""
    generator = np.random.default_rng(3)
    means = generator.uniform(-1, 1, (count, 3))
    quats = generator.normal(size=(count, 4))
    colors = 0.5 + 0.5 * np.sin(means * (2.0, 3.0, 2.5) + (0.0, 1.0, 2.0))
    return Gaussians(means, quats, np.full((count, 3), 0.12), np.full(count, 0.9), colors=colors)


def psnr(first: np.ndarray, second: np.ndarray) -> float:
    error = np.mean((first.astype(float) - second) ** 2)
    return float(10 * np.log10(255.0**2 / max(error, 1e-9)))


class Page:
    """A page of a viewer, with its session. A context that closes the page, since open pages go on drawing."""

    def __init__(self, browser: Any, viewer: Viewer, folder: Path) -> None:
        self.viewer, self._folder = viewer, folder
        before = viewer.sessions
        self.page = opened_page(browser, viewer.url, WIDTH, HEIGHT)
        wait_for(lambda: len(viewer.sessions) > len(before))
        (self.session,) = set(viewer.sessions) - set(before)
        # The page shows other scenes' pictures, or none, before the first picture of its camera.
        self.wait_until_sharp()

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *_: object) -> None:
        self.page.close()

    def wait_until_sharp(self, after: int = 0) -> None:
        """Waits until the last of more than `after` pictures is the sharp one of a camera at rest."""
        records = self.session.statistics

        def rests() -> bool:
            seen = records.records
            return len(seen) > after and seen[-1].order.is_sharp and time.monotonic() - seen[-1].moment_s > 0.7

        wait_for(rests)

    @property
    def lens(self) -> Lens:
        from lumigrad.client.viewer.lens import Lens

        (camera,) = [
            client.camera
            for number, client in self.viewer.server.get_clients().items()
            if self.viewer._sessions[number] is self.session
        ]
        return Lens(tuple(camera.wxyz), tuple(camera.position), camera.fov, camera.aspect)

    def shown(self, name: str) -> np.ndarray:
        return canvas_pixels(self.page, self._folder / f"{name}.png")

    def drag(self, steps: int = 40) -> None:
        """Orbits a little, for a second or longer."""
        mouse = self.page.mouse
        mouse.move(100, 300)
        mouse.down()
        for step in range(steps):
            mouse.move(100 + 5 * step, 300 + step)
            time.sleep(0.025)
        mouse.up()

    def choose(self, mode: str) -> None:
        self.page.get_by_role("combobox", name="Show").click()
        self.page.get_by_role("option", name=mode, exact=True).click()

    def matches(self, expected: Callable[[], np.ndarray], bound_db: float, name: str) -> None:
        """Waits until the page shows a picture."""
        found: list[float] = []

        def is_close() -> bool:
            found.append(psnr(self.shown(name), expected()))
            return found[-1] > bound_db

        try:
            wait_for(is_close)
        except AssertionError:
            pytest.fail(f"expected {bound_db} dB, got {found[-1]:.1f}; see {self._folder / name}.png")


def colors(target: str, scene: Any, lens: Lens, **settings: Any) -> np.ndarray:
    with Client(target) as client:
        return client.render(scene, lens.camera(WIDTH, HEIGHT), image_format="uint8", **settings).color
