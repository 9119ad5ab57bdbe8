"""Scenes with levels on CUDA and on its emulation: the same rows as a plain scene, to the last bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lumigrad.client import Camera, Client
from support.gaussians.levels import as_drawn, city, joined
from support.workers.cuda_machines import MACHINES, Machine

LEVELS = city(2, page_rows=16)
ALL = Camera.look_at((0, -30, 0.1), (0, 0, 0), (0, 0, 1), width=32, height=24, fov_degrees=30)


@pytest.mark.parametrize("machine", MACHINES)
def test_pages_are_gathered_on_the_device(machine: Machine, tmp_path: Path) -> None:
    with machine.worker("--spool", str(tmp_path)) as process, Client(process.target) as client:
        scene = client.put(LEVELS)
        for level, error_px in ((0, 1e-6), (2, 1e6)):
            places = [(page, level) for page in range(len(LEVELS))]
            plain, rounded = joined(LEVELS, places), as_drawn(LEVELS, places)
            frame = client.render(scene, ALL, max_error_px=error_px, retain=True, deterministic=True)
            other = client.render(plain, ALL, retain=True, deterministic=True)
            assert np.array_equal(frame.color, other.color)
            mine = frame.backward(np.ones_like(frame.color), release=True)
            theirs = other.backward(np.ones_like(frame.color), sparse=True, release=True)
            assert np.array_equal(mine.means, theirs.means)
            # Pages that are in memory as float32 are packed.
            frame = client.render(scene, ALL, max_error_px=error_px, deterministic=True)
            assert np.array_equal(frame.color, client.render(rounded, ALL, deterministic=True).color)
        assert client.render(scene, ALL, max_error_px=1e-6, wait=False).levels.late_pages == 0
