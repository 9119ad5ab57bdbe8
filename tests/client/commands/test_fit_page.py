"""The page of `lumigrad fit --view`, without a browser."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lumigrad.client import SceneHandle
from lumigrad.client.errors import ResourceExhausted

pytest.importorskip("viser", reason="no viser: pip install 'lumigrad[viewer]'")

from lumigrad.client.commands.fit_page import LiveScene


class StandInTrainer:
    """Publishes two versions, for more of which the worker has no room."""

    step_number = 0

    def __init__(self) -> None:
        self.asked = 0

    def publish(self) -> SceneHandle:
        self.asked += 1
        if self.asked > 2:
            raise ResourceExhausted("the spool is full")
        return SceneHandle("scene", self.asked, "", "gaussians", 100 * self.asked, 0)


def test_a_fit_whose_versions_have_no_room_goes_on_and_says_so() -> None:
    text = SimpleNamespace(content="")
    gui = SimpleNamespace(add_html=lambda *_, **__: text)
    refreshed: list[int] = []
    viewer: Any = SimpleNamespace(
        server=SimpleNamespace(gui=gui), sessions=[SimpleNamespace(refresh=lambda: refreshed.append(1))]
    )
    pacing: Any = SimpleNamespace(text=lambda number: f"step {number}")
    recipe: Any = SimpleNamespace(compared="PSNR", noun="Gaussians")
    trainer: Any = StandInTrainer()
    live = LiveScene(viewer, trainer, pacing, recipe)
    live.show(trainer, 20.0)
    assert "200 Gaussians" in text.content and "no longer" not in text.content
    for _ in range(3):
        live.show(trainer, 20.0)
        assert "200 Gaussians; the picture no longer changes" in text.content
    assert (trainer.asked, live.handle.count, len(refreshed)) == (3, 200, 4)
