"""Shapes and instances that are checked together, and their errors, equal those that are checked one by one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from lumigrad.kernels import meshes

FINE = (1.0, -2.0, 3.0, 0.5, 0.5, -0.5, 0.5)
POSES = [
    FINE,
    (0, 0, 0, 2e-6, 0, 0, 0),
    (0, 0, 0, 1e-6, 0, 0, 0),
    (0, 0, 0, 9e-7, 0, 0, 0),
    (0, 0, 0, 0, 0, 0, 0),
    (0, 0, 0, 1e300, 1e300, 0, 0),
    (1e9, 0, -1e9, 1, 0, 0, 0),
    (1.1e9, 0, 0, 1, 0, 0, 0),
    (math.nan, 0, 0, 1, 0, 0, 0),
    (0, 0, 0, math.inf, 0, 0, 0),
]
BOX = meshes.Cuboid((1.0, 2.0, 3.0))


def result(make: Any) -> tuple[Any, ...]:
    """Returns the attributes of the instance that `make` returns, or the parts of its error."""
    try:
        one = make()
    except meshes.ArgumentError as error:
        return error.argument.rpartition(".")[2].partition("[")[0], error.expected, error.actual
    return one.shape, one.pose, one.enabled, one.environment, one.sign


def same(found: tuple[Any, ...], expected: tuple[Any, ...]) -> bool:
    return len(found) == len(expected) and all(a is b or a == b for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("pose", POSES)
def test_instances_are_the_same_together(pose: tuple[float, ...]) -> None:
    rows = np.array([FINE, pose], np.float64)
    together = result(lambda: meshes.instances_of([BOX, BOX], rows, [True, False], [0, 3], ["auto", "auto"])[1])
    assert same(together, result(lambda: meshes.Instance(BOX, rows[1].tolist(), False, 3)))


@pytest.mark.parametrize("pose", POSES)
def test_poses_of_a_world_are_changed_together_as_one_by_one(pose: tuple[float, ...]) -> None:
    world = meshes.World([meshes.Instance(BOX, enabled=False), meshes.Instance(BOX, environment=1)], 2)
    together = result(lambda: world.with_poses({0: FINE, 1: pose}).instances[1])
    assert same(
        together, result(lambda: meshes.World([meshes.Instance(BOX, pose, environment=1)], 2).instances[0])
    ) or (together[0] == "poses" and together[1:] == result(lambda: meshes.Instance(BOX, pose))[1:])


def test_errors_name_the_row() -> None:
    rows = np.array([FINE, POSES[4]], np.float64)
    with pytest.raises(meshes.ArgumentError, match=r"instances\[1\]\.pose"):
        meshes.instances_of([BOX, BOX], rows, [True, True], [0, 0], ["auto", "auto"])
    with pytest.raises(meshes.ArgumentError, match=r"instances\[0\]\.sign"):
        meshes.instances_of([BOX], rows[:1], [True], [0], ["rays"])
    with pytest.raises(meshes.ArgumentError, match=r"poses\[1\]"):
        meshes.World([meshes.Instance(BOX)] * 2).with_poses({0: FINE, 1: POSES[4]})
    with pytest.raises(meshes.ArgumentError, match=r"sizes\[2\]"):
        meshes.cuboids_of(np.array([[1.0, 1, 1], [1e9, 1, 1], [1, 0, 1]]))


def test_cuboids_are_the_same_together() -> None:
    sizes = np.random.default_rng(0).uniform(0.1, 9, (5, 3))
    assert meshes.cuboids_of(sizes) == [meshes.Cuboid(tuple(size)) for size in sizes.tolist()]
    assert meshes.cuboids_of(sizes[:0]) == []
    assert meshes.instances_of([], np.empty((0, 7)), [], [], []) == []
