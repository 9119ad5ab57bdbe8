"""Camera paths pass smoothly through their key frames, and players end when they should."""

from __future__ import annotations

import threading

import numpy as np
import pytest

pytest.importorskip("viser", reason="no viser: pip install 'lumigrad[viewer]'")

from lumigrad.client.viewer.lens import Viewpoint
from lumigrad.client.viewer.path import CameraPath, Player

POSITIONS = ((3.0, 0.0, 1.0), (0.0, 3.0, 1.5), (-3.0, 0.5, 1.0), (0.2, -3.0, 0.5))
KEYS = [
    Viewpoint.looking(np.array(position), np.array([0.0, 0.1 * index, 0.0]), np.array([0.0, 0.0, 1.0]), 0.7, 1.5)
    for index, position in enumerate(POSITIONS)
]


@pytest.mark.parametrize("is_loop", [False, True])
def test_a_path_passes_through_its_key_frames_without_jumps(is_loop: bool) -> None:
    path = CameraPath(KEYS, 2.0, is_loop)
    assert path.duration_s == (8.0 if is_loop else 6.0)
    for index, key in enumerate(KEYS):
        found = path.at(2.0 * index)
        np.testing.assert_allclose(found.position, key.position, atol=1e-12)
        np.testing.assert_allclose(found.look_at, key.look_at, atol=1e-12)
        assert abs(found.wxyz @ key.wxyz) == pytest.approx(1.0)
    moments = np.arange(0.0, path.duration_s, 0.01)
    places = np.array([path.at(moment).position for moment in moments])
    velocities = np.diff(places, axis=0) / 0.01
    assert np.linalg.norm(velocities, axis=1).max() < 6.0
    # Without a kink, neighbouring velocities differ by little.
    assert np.linalg.norm(np.diff(velocities, axis=0), axis=1).max() < 0.2


def test_a_loop_repeats_and_a_way_ends() -> None:
    loop, way = CameraPath(KEYS, 1.0, True), CameraPath(KEYS, 1.0, False)
    np.testing.assert_allclose(loop.at(4.3).position, loop.at(0.3).position)
    np.testing.assert_allclose(way.at(9.0).position, POSITIONS[-1])
    assert len(list(loop.frames(10.0))) == 40
    frames = list(way.frames(10.0))
    assert len(frames) == 31
    np.testing.assert_allclose(frames[-1].position, POSITIONS[-1])


def test_a_player_ends_by_itself_or_when_it_is_stopped() -> None:
    player, ended, seen = Player(), threading.Event(), []

    def step(seconds: float) -> bool:
        seen.append(seconds)
        return len(seen) < 3

    player.start(step, 0.01, ended.set)
    assert ended.wait(60)
    assert len(seen) == 3
    assert not player.is_playing
    assert seen == sorted(seen)
    stopped = threading.Event()
    player.start(lambda seconds: True, 60.0, stopped.set)
    assert player.is_playing
    player.stop()
    assert stopped.wait(60)
