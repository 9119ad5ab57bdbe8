"""How large the viewer's pictures are while a camera moves."""

from __future__ import annotations

import random

import pytest

from lumigrad.client.viewer.stream import Pace

TARGET_S = 1 / 30
FULL = (1280, 720)


def run(pace: Pace, fixed_s: float, megapixel_s: float, pictures: int = 60, noise: float = 0.0) -> float:
    """Moves the camera with a worker of these costs; returns the seconds that the last picture took."""
    generator = random.Random(0)
    taken = 0.0
    for _ in range(pictures):
        width, height = pace.size(*FULL)
        taken = (fixed_s + megapixel_s * width * height / 1e6) * (1 + generator.uniform(-noise, noise))
        pace.observe(width * height, taken)
    return taken


def share(pace: Pace) -> float:
    return pace.size(*FULL)[0] / FULL[0]


def test_the_first_picture_is_coarse() -> None:
    assert Pace(TARGET_S).size(*FULL) == (640, 360)


@pytest.mark.parametrize("megapixel_s", [0.05, 0.1, 0.2, 0.4])
@pytest.mark.parametrize("fixed_s", [0.0, 0.005, 0.015])
def test_pictures_fall_until_they_come_in_time(fixed_s: float, megapixel_s: float) -> None:
    pace = Pace(TARGET_S)
    taken = run(pace, fixed_s, megapixel_s, noise=0.1)
    # One step changes the number of pixels by a factor of 1.4.
    assert taken < 1.6 * TARGET_S
    assert share(pace) == 1.0 or taken > 0.55 * TARGET_S


def test_a_fast_worker_gives_all_pixels() -> None:
    pace = Pace(TARGET_S)
    run(pace, 0.003, 0.01)
    assert pace.size(*FULL) == FULL


def test_a_slow_worker_gives_the_least_and_not_less() -> None:
    pace = Pace(TARGET_S, smallest=0.25)
    run(pace, 0.0, 5.0)
    assert pace.size(*FULL) == (320, 180)


def test_far_away_pictures_are_late_but_not_needlessly_coarse() -> None:
    """If the network takes 200 ms whatever the size, a quarter of the pixels would be no faster."""
    pace = Pace(TARGET_S)
    assert run(pace, 0.2, 0.03) < 0.27
    assert share(pace) > 0.8
    run(pace, 0.2, 0.03, pictures=500)
    assert share(pace) > 0.8


def test_it_recovers_when_the_worker_is_idle_again() -> None:
    pace = Pace(TARGET_S)
    run(pace, 0.002, 0.5)
    assert share(pace) < 0.4
    run(pace, 0.002, 0.02)
    assert share(pace) == 1.0


def test_one_late_picture_changes_little() -> None:
    pace = Pace(TARGET_S)
    run(pace, 0.005, 0.08)
    before = share(pace)
    width, height = pace.size(*FULL)
    pace.observe(width * height, 2.0)
    run(pace, 0.005, 0.08, pictures=10)
    assert share(pace) == pytest.approx(before, rel=0.25)


def test_sizes_do_not_flicker() -> None:
    pace = Pace(TARGET_S)
    run(pace, 0.005, 0.08)
    sizes = set()
    for _ in range(50):
        run(pace, 0.005, 0.08, pictures=1, noise=0.15)
        sizes.add(pace.size(*FULL))
    assert len(sizes) <= 2


def test_windows_of_any_size_have_pictures() -> None:
    pace = Pace(TARGET_S)
    run(pace, 0.0, 5.0)
    assert pace.size(1, 1) == (1, 1)
    assert pace.size(3, 2) == (3, 2)


def test_expectations_are_those_of_the_worker() -> None:
    pace = Pace(TARGET_S)
    assert pace.expected_s(1000) == 0.0
    run(pace, 0.01, 0.1)
    pace.observe(1280 * 720, 0.01 + 0.1 * 0.9216)
    assert pace.expected_s(500_000) == pytest.approx(0.06, rel=0.1)
