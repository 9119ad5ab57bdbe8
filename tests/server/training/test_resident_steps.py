"""Steps without Python have the same bits, are made whole or not at all, and give others their turns."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict

from lumigrad.server.core.errors import CancelledError
from lumigrad.v1 import training_pb2
from support.backends.gaussian_engines import ENGINES, instruction_set
from support.calls.raw_training import RATES
from support.training.random_states import random_state, too_fast, with_everything, with_surfaces
from support.training.resident import (
    Part,
    assert_as_with_python,
    assert_restored_goes_on,
    everything,
    failures_without_room,
    maker_of,
    plain_step,
)
from support.training.states import DENSITIES, sensor_camera, state_of
from support.workers.slow_render import wait_until

ISAS = [name.removeprefix("cpu-") for name in ENGINES if name.startswith("cpu-")]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("seed", range(16))
def test_steps_without_python_are_the_same_bits(seed: int, isa: str) -> None:
    (expected, views), (state, _) = random_state(seed), random_state(seed)
    with instruction_set(isa), maker_of() as maker:
        resident = assert_as_with_python(maker, state, expected, views)[1]
    assert resident >= 3


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", DENSITIES)
@pytest.mark.parametrize(
    ("planes", "weights"),
    [
        ((), {"normal": 0.3, "distortion": 0.2}),
        (("mask", "depth"), {"normal": 0.3, "distortion": 0.2, "alpha": 0.1, "depth": 0.1}),
        ((), {"normal": 0.3}),
        (("depth",), {"distortion": 0.2, "depth": 0.1}),
    ],
)
def test_terms_of_surfaces_need_no_python(
    planes: Sequence[str], weights: dict[str, float], kind: str, isa: str
) -> None:
    state, expected = with_surfaces(kind, planes, **weights), with_surfaces(kind, planes, **weights)
    views = [[0], [1], [2], [0], [2], [1], [0]] if kind == "none" else [[0, 1], [2, 0], [1, 2]] * 2
    with instruction_set(isa), maker_of() as maker:
        found, resident = assert_as_with_python(maker, state, expected, views)
    assert {"normal", "distortion"} & found[-1].terms.keys() == {"normal", "distortion"} & weights.keys()
    assert not {"normal", "distortion"} & found[1].terms.keys()
    # Steps in which opacities are cut need Python.
    assert resident >= len(views) - 2


def test_a_step_with_surfaces_and_without_room_changes_nothing() -> None:
    options = {"normal": 0.3, "distortion": 0.2, "surface_start": 0}
    planes = ("mask", "depth")
    with maker_of() as maker:
        failures = failures_without_room(
            maker, with_surfaces("none", planes, **options), with_surfaces("none", planes, **options)
        )
    assert failures > 10


@pytest.mark.parametrize("of_sensors", [False, True])
@pytest.mark.parametrize("kind", DENSITIES)
def test_a_step_without_room_changes_nothing(kind: str, of_sensors: bool) -> None:
    state, expected = (with_everything(kind, of_sensors=of_sensors) for _ in range(2))
    with maker_of() as maker:
        assert failures_without_room(maker, state, expected) > 10


@pytest.mark.parametrize("of_sensors", [False, True])
@pytest.mark.parametrize("kind", DENSITIES)
def test_a_state_that_is_restored_goes_on_alike(kind: str, of_sensors: bool) -> None:
    views = [[0], [1], [2], [0], [1], [2], [1]]
    state, restored = (with_everything(kind, of_sensors=of_sensors) for _ in range(2))
    assert_restored_goes_on(state, restored, views, 3)


def test_no_step_of_a_run_is_made_after_one_that_failed() -> None:
    state = state_of("none", RATES)
    with maker_of() as maker:
        memory: Any = SimpleNamespace(room_bytes=lambda cost: 1000)
        before = everything(state)
        assert maker.run(state, [[0], [1], [2]], memory=memory) is None
        assert everything(state) == before


def test_jobs_of_others_run_between_two_steps() -> None:
    state, ran = state_of("none", RATES), []
    with maker_of() as maker:
        go = threading.Event()
        blocker = threading.Thread(target=lambda: maker.executor.run(go.wait, Part("third")))
        blocker.start()
        wait_until(lambda: maker.executor.queue.is_busy, "the first job")
        run = threading.Thread(target=lambda: ran.append(maker.run(state, [[0]] * 30, Part("training"))))
        run.start()
        wait_until(lambda: maker.executor.queue.depth == 2, "the first steps")
        seen: list[int] = []

        def look() -> None:
            seen.append(maker.steps._binding.native.next)  # type: ignore[union-attr]

        others = [threading.Thread(target=lambda: maker.executor.run(look, Part("other"))) for _ in range(3)]
        for other in others:
            other.start()
        wait_until(lambda: maker.executor.queue.depth == 5, "the other jobs")
        go.set()
        for thread in (blocker, run, *others):
            thread.join(60)
    assert len(ran[0].reports) == 30 and state.step == 30
    # The other jobs ran before the end of the run.
    assert max(seen) < 30


def test_a_call_that_ends_ends_its_run_between_two_steps() -> None:
    state, expected = state_of("none", RATES), state_of("none", RATES)
    call, errors = Part(), []
    with maker_of() as maker:
        go = threading.Event()
        blocker = threading.Thread(target=lambda: maker.executor.run(go.wait, Part("third")))
        blocker.start()
        wait_until(lambda: maker.executor.queue.is_busy, "the first job")

        def run() -> None:
            try:
                maker.run(state, [[0]] * 4, call)
            except CancelledError as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        wait_until(lambda: maker.executor.queue.depth == 2, "the first steps")
        call.callbacks[0]()
        go.set()
        blocker.join(60)
        thread.join(60)
    assert len(errors) == 1 and everything(state) == everything(expected)


@pytest.mark.parametrize("isa", ISAS)
def test_steps_of_intrinsics_that_no_number_can_hold_are_taken_back(isa: str) -> None:
    state, expected = too_fast(), too_fast()
    views = [[0], [1], [2], [0, 1], [2], [1, 2, 0]]
    with instruction_set(isa), maker_of() as maker:
        assert maker.all(state, views)[1] == len(views)
        for each in views:
            plain_step(expected, each)
    assert everything(state) == everything(expected)
    # The first two steps do not count.
    assert state.refinement.tensors()["intrinsics.steps"].tolist() == [4, 2]


@pytest.mark.parametrize(
    "setting", [{"projection_method": "PROJECTION_METHOD_UNSCENTED"}, {"response": "RESPONSE_RAY"}]
)
def test_poses_of_cameras_that_are_rendered_as_sensors_are_the_same(setting: dict[str, str]) -> None:
    def change(spec: training_pb2.TrainingSpec) -> None:
        ParseDict(setting, spec.gaussians)

    state, expected = (state_of("none", {**RATES, "poses": 1e-3}, change) for _ in range(2))
    with maker_of() as maker:
        assert maker.all(state, [[0], [1], [0]])[1] == 3
    for each in ([0], [1], [0]):
        plain_step(expected, each)
    assert everything(state) == everything(expected)


def test_what_is_unusual_needs_python() -> None:
    with maker_of() as maker:
        unusual = state_of("none", {**RATES, "lenses": 1e-3}, camera=sensor_camera)
        assert maker.steps.length(unusual, [[0]]) == 0
        assert maker.steps.length(state_of("none", RATES), [[0]]) == 1
