"""The sample city: as many Gaussians as asked for, always the same, with the same things around its middle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lumigrad.client.formats import read_scene
from lumigrad.client.formats.beside import SceneView
from lumigrad.client.samples.city import _centre, write_city
from support.workers.forks import lumigrad


@pytest.mark.parametrize("count", [1, 100_000, 250_001])
def test_it_has_as_many_gaussians_as_asked_for(tmp_path: Path, count: int) -> None:
    told = list(write_city(tmp_path / "city.ply", count))
    scene = read_scene(tmp_path / "city.ply")
    assert len(scene) == told[-1] == count and scene.degree == 1 and not scene.invalid()
    assert SceneView.load(tmp_path / "city.ply") is not None


def test_a_larger_city_begins_with_the_smaller_one(tmp_path: Path) -> None:
    for name, count in (("small.ply", 180_000), ("large.ply", 260_000)):
        list(write_city(tmp_path / name, count))
    small, large = (read_scene(tmp_path / name) for name in ("small.ply", "large.ply"))
    np.testing.assert_array_equal(small.means[:80_000], large.means[:80_000])


def test_blocks_fill_squares_around_the_middle() -> None:
    places = np.array([_centre(block) for block in range(49)]) / 24.0
    assert len(np.unique(places, axis=0)) == 49
    for ring in range(4):
        assert np.abs(places[: (2 * ring + 1) ** 2]).max() == ring


def test_the_command_writes_it(tmp_path: Path) -> None:
    done = lumigrad("sample", "city", "city.ply", "--count", "1000", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    size = (tmp_path / "city.ply").stat().st_size
    assert done.stdout.splitlines()[0] == f"city.ply: 1,000 Gaussians, {size:,} bytes"
    done = lumigrad("sample", "city", "city", folder=tmp_path)
    assert done.returncode == 2 and "expected a name that ends in .ply for a city" in done.stderr
