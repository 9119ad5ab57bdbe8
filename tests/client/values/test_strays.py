"""Places that lie far from all others count neither for the size of a scene nor for its frame."""

from __future__ import annotations

import numpy as np
import pytest

from lumigrad.client import Camera
from lumigrad.client.base.strays import near_places
from lumigrad.client.datasets import View
from lumigrad.client.datasets.frame import offset_of
from lumigrad.client.training.options import extent_of

RING = [(3 * np.cos(angle), 3 * np.sin(angle), 1.0) for angle in np.arange(20)]


def camera(eye: tuple[float, ...]) -> Camera:
    return Camera.look_at(eye, np.add(eye, (0.3, 0.2, -0.1)), up=(0, 0, 1), width=8, height=6)


def test_few_places_far_from_all_others_are_strays() -> None:
    places = np.array([*RING, (400.0, 0.0, 0.0), (0.0, 0.0, -90.0)])
    assert near_places(places).tolist() == [True] * 20 + [False] * 2
    # Three of twenty-three are too many, and nobody can tell which of few places is wrong.
    assert near_places(np.array([*places, (0.0, 90.0, 0.0)])).all()
    assert near_places(places[[0, 1, 2, 20]]).all()
    # The farther half of a street is not a stray, nor what is not at the place of nearly all others.
    assert near_places(np.linspace((0, 0, 0), (300, 0, 0), 60)).all()
    assert near_places(np.array([(1.0, 2.0, 3.0)] * 20 + [(5.0, 2.0, 3.0)])).all()


def test_the_size_of_the_region_of_cameras_is_that_without_strays() -> None:
    usual = extent_of([camera(eye) for eye in RING])
    assert (
        extent_of([*(camera(eye) for eye in RING), camera((900.0, 0.0, 0.0))]) == usual == pytest.approx(3.3, rel=0.1)
    )


def test_a_stray_at_0_leaves_the_frame_of_a_map() -> None:
    there = np.add(RING, (500_000.0, 4_600_000.0, 100.0))
    views = [View(f"v{k}", camera(tuple(eye))) for k, eye in enumerate([*there, np.zeros(3)])]
    found = offset_of(views)
    assert found is not None and np.abs(np.array(found) - there[0]).max() < 20
