"""A scene with levels of detail in the viewer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lumigrad.client import Gaussians
from lumigrad.client.formats.levels.building import write_levels
from support.viewing import Page, options
from support.workers.spooling import spooling

pytest.importorskip("viser", reason="no viser: pip install 'lumigrad[viewer]'")

from lumigrad.client.commands.view_page import opened

COUNT = 6000


def test_levels_are_shown_without_a_crop_box(browser: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    places, scales = rng.uniform(-8, 8, (COUNT, 3)) * (1, 0.1, 1), rng.uniform(0.02, 0.1, (COUNT, 3))
    quaternions, opacities, colors = rng.normal(size=(COUNT, 4)), rng.uniform(0.3, 0.9, COUNT), rng.random((COUNT, 3))
    Gaussians(places, quaternions, scales, opacities, colors=colors).save(tmp_path / "city.ply")
    write_levels(tmp_path / "city.ply", tmp_path / "city", page_rows=256)
    with (
        spooling(tmp_path / "spool", supervised=False) as process,
        opened(options(process.target, str(tmp_path / "city"))) as viewer,
        Page(browser, viewer, tmp_path) as page,
    ):
        page.wait_until_sharp()
        assert page.shown("levels").max() > 0.2
        assert page.page.get_by_text("Crop box").count() == 0
