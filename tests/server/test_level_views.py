"""Views of scenes with levels of detail, when a view ends before it draws what it has found."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from lumigrad.client import Camera
from lumigrad.client.wire.cameras import camera_message
from lumigrad.kernels.gaussians import CELL, VISITS
from lumigrad.server.core.config import Config
from lumigrad.server.core.limits import Limits
from lumigrad.server.core.metrics import Metrics
from lumigrad.server.device.memory import Budget
from lumigrad.server.device.transfer import Transfer
from lumigrad.server.engines.gaussians import GAUSSIANS, GaussianPlan
from lumigrad.server.engines.levels import LevelTable
from lumigrad.server.scenes import level_view
from lumigrad.server.scenes.level_view import LevelView
from lumigrad.server.scenes.occlusion import Occlusion
from lumigrad.server.storage.page_pool import PagePool
from lumigrad.v1 import render_pb2
from support.workers.held_device import StandInCall

SCENE = "a-scene"
TABLE = LevelTable(
    bounds=np.float32([[[[-1, -1, 4], [1, 1, 6]]]]),
    counts=np.array([[1]]),
    errors=np.zeros((1, 1), np.float32),
    digests=np.zeros((1, 1, 32), np.uint8),
    sh_degree=0,
    table_bytes=0,
)


class Deleting:
    """A search for hidden pages during which the scene is deleted after its first cut was kept."""

    def __init__(self, pool: PagePool, spool: SimpleNamespace) -> None:
        self._pool, self._spool = pool, spool

    def __call__(self, _: str, cut: Any, *__: Any) -> Deleting:
        self._cut = cut
        return self

    def hidden(self, most_rows: int) -> Any:
        self._spool.touch = lambda scene_id: False
        self._pool.forget(SCENE)
        self._pool.cut(SCENE, self._cut, torch.device("cpu"))
        return None


@pytest.mark.parametrize("most_rows", [1, 0])
def test_a_view_that_is_never_gathered_leaves_nothing_of_a_deleted_scene(
    monkeypatch: pytest.MonkeyPatch, most_rows: int
) -> None:
    pool, call = PagePool(1 << 20, Budget(1 << 20), Metrics()), StandInCall()
    spool = SimpleNamespace(touch=lambda scene_id: True)
    scene: Any = SimpleNamespace(scene_id=SCENE, reference=None, content=SimpleNamespace(table=TABLE))
    monkeypatch.setattr(level_view, "LevelsContent", SimpleNamespace)
    monkeypatch.setattr(level_view, "_check", lambda *_: None)
    monkeypatch.setattr(level_view, "Occlusion", Deleting(pool, spool))
    monkeypatch.setattr(level_view, "gaussian_cameras", lambda *_: [])
    monkeypatch.setattr(level_view, "chosen", lambda *_: (np.zeros(1, np.int8), np.zeros((1, 1))))
    runtime: Any = SimpleNamespace(pages=pool, spool=spool, limits=None)
    spec = render_pb2.RenderSpec()
    spec.gaussians.max_gaussians = most_rows
    view = LevelView(scene, spec, runtime, call, "spec", is_differentiated=False)  # type: ignore[arg-type]
    if most_rows:
        view.choose(spec, SimpleNamespace(cameras=[]))  # type: ignore[arg-type]
        assert pool.bytes > 0
        call.cancel()
    else:
        with pytest.raises(level_view.BusyError):
            view.choose(spec, SimpleNamespace(cameras=[]))  # type: ignore[arg-type]
    assert pool.bytes == 0


def test_a_search_for_hidden_pages_counts_only_what_it_adds_to_the_rows() -> None:
    """The pool counts the rows, which a pass does not copy."""
    costs: list[int] = []
    runtime: Any = SimpleNamespace(
        limits=Limits.of(Config()),
        transfer=Transfer(torch.device("cpu")),
        memory=SimpleNamespace(check=lambda cost: costs.append(cost.bytes)),
        executor=SimpleNamespace(deliver=lambda draw, call, cost: draw().result),
    )
    camera = camera_message(Camera.look_at((0, 0, -2), (0, 0, 5), width=64, height=48))
    spec = render_pb2.RenderSpec(cameras=[camera], outputs=["color"])
    count = 100_000
    shapes = {"means": [count, 3], "quats": [count, 4], "scales": [count, 3], "opacities": [count]}
    plan = GAUSSIANS.plan(spec, {**shapes, "colors": [count, 1]}, runtime.limits, "spec")
    assert isinstance(plan, GaussianPlan)
    rows: Any = SimpleNamespace(tensors={name: torch.ones(shape) for name, shape in shapes.items()}, bytes=44 * count)
    unused: Any = None
    search = Occlusion(SCENE, unused, unused, spec, plan, runtime, StandInCall(), unused, unused)  # type: ignore[arg-type]
    visited, closing = search._drawn(rows, 0)
    assert visited.shape == (count,)
    assert closing.shape == (48 // CELL, 64 // CELL)
    outputs = ("color", "depths", *VISITS)
    assert costs == [plan.forward_bytes(outputs, retain=False, device=runtime.transfer.device)]
