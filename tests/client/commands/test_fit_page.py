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
    """Publishes some versions, for more of which the worker has no room."""

    step_number = 0

    def __init__(self, most: int) -> None:
        self._most = most
        self.asked = 0

    def scene(self) -> int:
        """The number of its Gaussians."""
        return 50

    def publish(self) -> SceneHandle:
        self.asked += 1
        if self.asked > self._most:
            raise ResourceExhausted("the spool is full")
        return SceneHandle("scene", self.asked, "", "gaussians", 100 * self.asked, 0)


@pytest.mark.parametrize(("most", "last"), [(2, 200), (1, 100), (0, 50)])
def test_a_fit_whose_versions_have_no_room_goes_on_and_says_so(most: int, last: int) -> None:
    text = SimpleNamespace(content="")
    gui = SimpleNamespace(add_html=lambda *_, **__: text)
    refreshed: list[int] = []
    viewer: Any = SimpleNamespace(
        server=SimpleNamespace(gui=gui), sessions=[SimpleNamespace(refresh=lambda: refreshed.append(1))]
    )
    pacing: Any = SimpleNamespace(text=lambda number: f"step {number}")
    recipe: Any = SimpleNamespace(compared="PSNR", noun="Gaussians")
    client: Any = SimpleNamespace(put=lambda count: SceneHandle("put", 1, "", "gaussians", count, 0))
    trainer: Any = StandInTrainer(most)
    live = LiveScene(viewer, client, trainer, pacing, recipe)
    if most == 2:
        live.show(trainer, 20.0)
        assert "200 Gaussians" in text.content and "no longer" not in text.content
    for number in range(3):
        live.show(trainer, 20.0)
        assert f"{last} Gaussians; the picture no longer changes" in text.content
        assert len(refreshed) == number + (2 if most == 2 else 1)
    assert (trainer.asked, live.handle.count) == (most + 1, last)
