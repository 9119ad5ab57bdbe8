"""Tenants share the memory of pages: none sees another's scenes, and none drives another's pages out."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from lumigrad.client import Camera, Client
from lumigrad.client.errors import SceneNotFound
from support.gaussians.levels import as_drawn, city
from support.workers.worker import worker

SMALL, LARGE = city(3, page_rows=64), city(6, page_rows=512, seed=1)
ALL = Camera.look_at((0, -60, 0.1), (0, 0, 0), (0, 0, 1), width=96, height=64, fov_degrees=30)
VIEWS = [
    Camera.look_at((x, -8, z), (x, 0, z + 0.1), (0, 0, 1), width=48, height=48, fov_degrees=40)
    for x in (-8, 0, 8)
    for z in (-8, 0, 8)
]
TOKENS = {"small": "a-token-of-the-small-one", "large": "a-token-of-the-large-one"}


def test_pages_of_one_tenant_stay_while_another_needs_more_than_there_is(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("".join(f"{tenant}: {token}\n" for tenant, token in TOKENS.items()))
    options = ("--tokens-file", str(tokens), "--spool", str(tmp_path / "spool"))
    with (
        worker("--device", "cpu", *options, "--max-payload-mib", "1", "--scene-mib", "2") as process,
        Client(process.target, token=TOKENS["small"]) as small,
        Client(process.target, token=TOKENS["large"]) as large,
    ):
        mine, theirs = small.put(SMALL), large.put(LARGE)
        with pytest.raises(SceneNotFound):
            large.render(small.get(mine.scene_id), ALL)
        first = small.render(mine, ALL, max_error_px=1e-6)
        expected = small.render(as_drawn(SMALL, [(page, 0) for page in range(len(SMALL))]), ALL)
        assert np.array_equal(first.color, expected.color)
        alone = [large.render(theirs, view, max_error_px=1e-6).color for view in VIEWS]
        assert process.metric("lumigrad_evictions_total", store="pages") > 0
        with ThreadPoolExecutor(4) as pool:
            again = pool.map(lambda view: large.render(theirs, view, max_error_px=1e-6).color, VIEWS * 2)
            for _ in range(5):
                frame = small.render(mine, ALL, max_error_px=1e-6, wait=False)
                assert frame.levels is not None
                assert frame.levels.late_pages == 0
                assert np.array_equal(frame.color, first.color)
            assert all(np.array_equal(one, other) for one, other in zip(again, alone * 2, strict=True))
