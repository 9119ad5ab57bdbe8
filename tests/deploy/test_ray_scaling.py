"""When a fleet of workers in a Ray cluster grows and shrinks."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from support.deploy.ray_cluster import require_ray

Options = require_ray("lumigrad.ray.options").Options
Scaling = require_ray("lumigrad.ray.scaling").Scaling

OPTIONS = Options(minimum=1, maximum=3, queue_high=4, busy_s=5, idle_s=60)


def test_it_grows_only_when_calls_have_waited_for_long() -> None:
    scaling = Scaling(OPTIONS)
    assert scaling.look(0, [9], [10]) == 1
    assert scaling.look(4.9, [9], [10]) == 1
    assert scaling.look(5, [9], [10]) == 2


def test_a_short_queue_begins_the_wait_anew() -> None:
    scaling = Scaling(OPTIONS)
    scaling.look(0, [9], [10])
    assert scaling.look(4, [4], [5]) == 1
    assert scaling.look(6, [9], [10]) == 1
    assert scaling.look(11, [9], [10]) == 2


def test_nobody_is_added_while_one_is_on_its_way() -> None:
    scaling = Scaling(OPTIONS)
    scaling.look(0, [9], [10])
    assert scaling.look(5, [9], [10]) == 2
    assert [scaling.look(now, [30], [31]) for now in range(6, 30)] == [2] * 24
    scaling.look(30, [15, 15], [16, 16])
    assert scaling.look(35, [15, 15], [16, 16]) == 3
    scaling.look(36, [15, 15, 15], [16] * 3)
    assert scaling.look(99, [15, 15, 15], [16] * 3) == 3, "the most"


def test_it_shrinks_when_one_fewer_would_do_and_never_below_the_least() -> None:
    scaling = Scaling(OPTIONS)
    scaling.wanted = 3
    assert scaling.look(0, [0, 0, 0], [1, 1, 1]) == 3, "each has something to do"
    assert scaling.look(70, [0, 0, 0], [1, 1, 0]) == 3
    assert scaling.look(130, [0, 0, 0], [1, 1, 0]) == 2
    assert scaling.look(131, [0, 0], [0, 0]) == 2
    assert scaling.look(191, [0, 0], [0, 0]) == 1
    assert [scaling.look(now, [0], [0]) for now in range(192, 400, 50)] == [1] * 5


def test_one_that_finds_no_room_is_given_up_when_it_is_not_needed() -> None:
    scaling = Scaling(OPTIONS)
    scaling.wanted = 2
    scaling.look(0, [0], [0])
    assert scaling.look(60, [0], [0]) == 1


def test_while_all_are_away_nothing_changes() -> None:
    scaling = Scaling(OPTIONS)
    scaling.wanted = 2
    assert [scaling.look(now, [], []) for now in range(0, 300, 30)] == [2] * 10


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"minimum": 0}, "minimum: expected a number of workers >= 1, got 0"),
        ({"minimum": 3, "maximum": 2}, "maximum: expected at least minimum = 3"),
        ({"gpus": -1}, "gpus: expected a value >= 0"),
        ({"interval_s": 0}, "interval_s: expected a value > 0"),
        ({"serve": ("--port=1",)}, "serve: expected options without --port=1"),
    ],
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Options(**wrong)


def test_a_fleet_needs_the_client_alone_and_split_scenes_the_kernels_too() -> None:
    folder = Path(require_ray("lumigrad.ray").__file__).parent
    needed: dict[bool, set[str]] = {False: set(), True: set()}
    for path in folder.glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = [
            alias.name if isinstance(node, ast.Import) else node.module or ""
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        ]
        is_split = path.stem in ("bands", "part", "split_scene")
        needed[is_split] |= {name.split(".")[1] for name in names if name.startswith("lumigrad.")}
    assert needed == {False: {"client", "ray"}, True: {"client", "kernels", "ray"}}
