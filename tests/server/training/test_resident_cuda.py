"""Steps without Python on the emulated CUDA device have the same bits, and the host waits for nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from lumigrad.kernels.density.engine import CudaEngine as DensityEngine
from lumigrad.kernels.gaussians.engine import CudaEngine as GaussianEngine
from lumigrad.kernels.training.engine import CudaEngine as TrainingEngine
from lumigrad.server.core.errors import DeviceMemoryError
from lumigrad.server.training.state import TrainingState
from lumigrad.server.training.views import Views
from lumigrad.v1 import training_pb2
from support.backends import emulation
from support.backends.deferral import deferred
from support.calls.raw_calls import opencv_camera
from support.calls.raw_training import RATES
from support.training.random_states import random_state, too_fast, with_everything
from support.training.resident import (
    Part,
    assert_as_with_python,
    everything,
    failures_without_room,
    maker_of,
    plain_step,
)
from support.training.states import DENSITIES, LIMITS, state_of

STEPS = [[0], [1], [2], [0, 1], [2], [1]]


@pytest.fixture
def native() -> ModuleType:
    return emulation.load("_emulation")


@contextmanager
def emulated(native: ModuleType) -> Iterator[None]:
    """Runs the kernels of steps with Python on the emulated device too."""
    engines = {
        "gaussians": GaussianEngine(native, 0, lambda: 0),
        "training": TrainingEngine(native, 0, lambda: 0),
        "density": DensityEngine(native, 0, lambda: 0),
    }
    with ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            room = name.removeprefix("lumigrad.kernels.").partition(".")[0]
            if room in engines and name.startswith("lumigrad.kernels.") and hasattr(module, "engine_for"):
                stack.enter_context(mock.patch.object(module, "engine_for", lambda _, room=room: engines[room]))
        yield


def deterministic(spec: training_pb2.TrainingSpec) -> None:
    spec.gaussians.deterministic = True


@pytest.mark.parametrize("seed", range(8))
def test_steps_of_all_kinds_are_the_same_bits(seed: int, native: ModuleType) -> None:
    (state, views), (expected, _) = (random_state(seed, deterministic=True) for _ in range(2))
    with emulated(native), maker_of(native.cuda_step_machine(0, 0)) as maker:
        resident = assert_as_with_python(maker, state, expected, views)[1]
    assert resident >= 2


@pytest.mark.parametrize("kind", DENSITIES)
def test_steps_without_python_are_the_same_bits(kind: str, native: ModuleType) -> None:
    state, expected = state_of(kind, RATES, deterministic), state_of(kind, RATES, deterministic)
    with emulated(native), maker_of(native.cuda_step_machine(0, 0)) as maker:
        resident = assert_as_with_python(maker, state, expected, STEPS)[1]
    assert resident >= 2


def test_steps_of_intrinsics_that_no_number_can_hold_are_taken_back(native: ModuleType) -> None:
    state, expected = (too_fast(deterministic=True) for _ in range(2))
    with emulated(native), maker_of(native.cuda_step_machine(0, 0)) as maker:
        assert maker.all(state, STEPS)[1] == len(STEPS)
        for each in STEPS:
            plain_step(expected, each)
    assert everything(state) == everything(expected)
    assert state.refinement.tensors()["intrinsics.steps"].tolist() == [3, 2]


@pytest.mark.parametrize("of_sensors", [False, True])
def test_a_step_without_room_changes_nothing(native: ModuleType, of_sensors: bool) -> None:
    state, expected = (with_everything("adaptive", deterministic=True, of_sensors=of_sensors) for _ in range(2))
    with emulated(native), maker_of(native.cuda_step_machine(0, 0)) as maker:
        assert failures_without_room(maker, state, expected, native.limit_memory) > 10


@pytest.mark.parametrize("kind", ["adaptive", "mcmc"])
def test_a_controlled_step_without_room_changes_nothing(kind: str, native: ModuleType) -> None:
    state, expected = (with_everything(kind, deterministic=True) for _ in range(2))
    failures = 0
    with emulated(native), maker_of(native.cuda_step_machine(0, 0)) as maker:
        while not maker.steps.is_controlled(state, [2]):
            maker.all(state, [[2]])
            plain_step(expected, [2])
        before = everything(state)
        for room in range(0, 1 << 20, 1 << 10):
            maker.executor.run(lambda room=room: native.limit_memory(room), Part())  # type: ignore[misc]
            try:
                maker.control(state, [2]).read()
                break
            except DeviceMemoryError:
                failures += 1
                assert everything(state) == before, room
        maker.executor.run(lambda: native.limit_memory(-1), Part())
        plain_step(expected, [2])
    assert failures > 10 and everything(state) == everything(expected)


@pytest.mark.parametrize("of_sensors", [False, True])
def test_the_host_waits_for_nothing_in_steps(native: ModuleType, of_sensors: bool) -> None:
    """The host waits only for the first step, in which it learns how long the lists of tiles are."""
    state = with_everything("none", of_sensors=of_sensors)
    with maker_of(native.cuda_step_machine(0, 0)) as maker, deferred(native):
        first = maker.run(state, [[0]])
        assert first is not None
        first.wait()
        native.take_idle_waits()
        report = maker.run(state, [[number % 3] for number in range(100)])
        assert report is not None and len(report.reports) == 100
        assert native.take_idle_waits() == 0
        report.wait()
        losses = [done.loss for done in report.read()]
        assert native.take_idle_waits() == 1
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("kind", ["adaptive", "mcmc"])
@pytest.mark.parametrize("of_sensors", [False, True])
def test_the_host_waits_once_where_density_is_controlled(kind: str, of_sensors: bool, native: ModuleType) -> None:
    state, waits, call = with_everything(kind, of_sensors=of_sensors), [], Part()
    with emulated(native), maker_of(native.cuda_step_machine(0, 0)) as maker, deferred(native) as order:
        for number in range(7):
            views = [number % 3]
            if maker.steps.is_controlled(state, views):
                maker.steps.control_cost(state, views, LIMITS)
                order.take_waits()
                report = maker.steps.control(state, views, 0, LIMITS, call)
                waits.append(order.take_waits())
            else:
                report = maker.run(state, [views])
            report.wait()
    assert waits == {"adaptive": [1, 0, 1, 1], "mcmc": [1, 1, 1]}[kind]


def near_and_far() -> TrainingState:
    """A training of two views that changes nothing: of a point far away, and of Gaussians that cover the film."""
    state, size = state_of("none", dict.fromkeys(RATES, 0.0)), (160, 128)
    messages = [training_pb2.TrainingView(camera=opencv_camera(*size)) for _ in range(2)]
    for message, depth in zip(messages, (60.0, -3.9), strict=True):
        message.camera.opencv.translation[2] = depth
    target = torch.full((size[1], size[0], 3), 0.5)
    image: Any = SimpleNamespace(tensors={"color": target}, bytes=target.nbytes)
    state.views = Views(messages, [image, image])
    return state


def test_a_step_with_more_pairs_than_there_is_room_for_is_the_same(native: ModuleType) -> None:
    found, expected = [], []
    for each in (0, 1):
        with maker_of(native.cuda_step_machine(0, 0)) as maker:
            expected += maker.all(near_and_far(), [[each]])[0]
    state = near_and_far()
    with maker_of(native.cuda_step_machine(0, 0)) as maker:
        found += maker.all(state, [[0]])[0]
        # The lists have room for 1,024 pairs, but the 80 tiles of the film and 40 Gaussians have more.
        found += maker.all(state, [[1]])[0]
        # The lists have enough room now.
        found += maker.all(state, [[1]])[0]
    for got, wanted in zip(found, (*expected, expected[1]), strict=True):
        assert got.visible == wanted.visible
        assert got.loss == pytest.approx(wanted.loss, rel=1e-6)
        for name, statistics in wanted.statistics.items():
            assert got.statistics[name].squares == pytest.approx(statistics.squares, rel=1e-4)
    assert expected[1].visible >= 20
