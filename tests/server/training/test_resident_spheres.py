"""Steps of spheres without Python have the same bits, are made whole or not at all, and leave to Python the rest."""

from __future__ import annotations

import math
import random
from contextlib import nullcontext

import pytest
import torch

from lumigrad.kernels import _native
from lumigrad.server.core.errors import InvalidArgumentError
from lumigrad.v1 import spheres_pb2, training_pb2
from support.backends.gaussian_engines import ENGINES, instruction_set
from support.training.resident import (
    assert_as_with_python,
    assert_restored_goes_on,
    everything,
    failures_without_room,
    maker_of,
    plain_step,
)
from support.training.sphere_states import SPHERE_RATES, random_spheres, sphere_state

ISAS = [name.removeprefix("cpu-") for name in ENGINES if name.startswith("cpu-")]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("seed", range(24))
def test_steps_without_python_are_the_same_bits(seed: int, isa: str) -> None:
    (expected, views), (state, _) = random_spheres(seed), random_spheres(seed)
    with instruction_set(isa), maker_of() as maker:
        resident = assert_as_with_python(maker, state, expected, views)[1]
    assert resident == len(views)


@pytest.mark.parametrize("semantics", [spheres_pb2.SEMANTICS_EXACT, spheres_pb2.SEMANTICS_COMPAT])
def test_a_step_without_room_changes_nothing(semantics: spheres_pb2.Semantics) -> None:
    def change(spec: training_pb2.TrainingSpec) -> None:
        spec.spheres.semantics = semantics
        spec.loss.alpha = 0.1 if semantics == spheres_pb2.SEMANTICS_EXACT else 0.0

    rates = {**SPHERE_RATES, "exposures": 1e-2}
    state, expected = (sphere_state(change, rates=rates, has_masks=True) for _ in range(2))
    with maker_of() as maker:
        assert failures_without_room(maker, state, expected) > 10


def test_a_state_that_is_restored_goes_on_alike() -> None:
    views = [[0], [1, 2], [2], [0], [2, 1], [1], [0]]
    rates = {**SPHERE_RATES, "exposures": 1e-2}
    state, restored = (sphere_state(rates=rates) for _ in range(2))
    assert_restored_goes_on(state, restored, views, 3)


def test_steps_with_python_may_come_between() -> None:
    state, expected = sphere_state(), sphere_state()
    with maker_of() as maker:
        for each in ([0], [1], [2], [0, 1], [2]):
            plain_step(state, each)
            assert maker.all(state, [each, each])[1] == 2
            for _ in range(3):
                plain_step(expected, each)
    assert everything(state) == everything(expected)


def test_python_makes_the_steps_that_need_it() -> None:
    def compat_alphas(spec: training_pb2.TrainingSpec) -> None:
        spec.spheres.semantics, spec.loss.alpha = spheres_pb2.SEMANTICS_COMPAT, 0.1

    with maker_of() as maker:
        assert maker.steps.length(sphere_state(), [[0]]) == 1
        assert maker.steps.length(sphere_state(rates={**SPHERE_RATES, "poses": 1e-3}), [[0]]) == 0
        assert maker.steps.length(sphere_state(compat_alphas, has_masks=True), [[0]]) == 0


@pytest.mark.parametrize("fault", ["infinite", "no number", "huge"])
def test_a_step_whose_depth_range_has_no_end_is_left_to_python(fault: str) -> None:
    state, expected = sphere_state(), sphere_state()
    value = {"infinite": math.inf, "no number": math.nan, "huge": 3e38}[fault]
    for each in (state, expected):
        each.parameters.by_name["positions"].raw[3, 1] = value
        each.parameters.by_name["radii"].value[3] = 3e38
    before = everything(state)
    with maker_of() as maker:
        assert maker.run(state, [[0]]) is None
        assert everything(state) == before
    # Python ignores the box if a number is missing.
    with nullcontext() if fault == "no number" else pytest.raises(InvalidArgumentError):
        plain_step(state, [0])
        assert fault == "no number"
        plain_step(expected, [0])
    assert everything(state) == everything(expected)


def test_farthest_corners_are_at_their_distance() -> None:
    chance = random.Random(0)
    for _ in range(100):
        low, high, eye = (torch.empty(3).uniform_(-9, 9).tolist() for _ in range(3))
        sides = [max(abs(a - e), abs(b - e)) for a, b, e in zip(low, high, eye, strict=True)]
        scale = chance.choice((1e-3, 1.0, 1e3))
        scaled = [[scale * value for value in point] for point in (low, high, eye)]
        assert _native.farthest_corner(*scaled) == pytest.approx(scale * math.hypot(*sides), rel=1e-15)
