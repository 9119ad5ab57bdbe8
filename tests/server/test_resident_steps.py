"""Steps without Python are the same, bit by bit; each is made whole or not at all, and others have their turns."""

from __future__ import annotations

import random
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from lumigrad.server.core.errors import CancelledError
from lumigrad.server.training.session import done_message
from lumigrad.server.training.state import TrainingState
from lumigrad.v1 import gaussians_pb2, training_pb2
from support.backends.gaussian_engines import ENGINES, instruction_set
from support.calls.raw_training import RATES
from support.training.resident import Part, everything, maker_of, plain_step
from support.training.states import DENSITIES, state_of
from support.workers.slow_render import wait_until

STEPS = 7
ISAS = [name.removeprefix("cpu-") for name in ENGINES if name.startswith("cpu-")]


def random_state(seed: int) -> tuple[TrainingState, list[list[int]]]:
    """A plain training, and the views of some steps."""
    chance = random.Random(seed)
    kind = chance.choice(list(DENSITIES))
    # Density control needs these.
    needed = {"means", "quats", "scales", "opacities"} if kind != "none" else {chance.choice(list(RATES))}
    coefficients = chance.choice((0, 1, 4, 9))
    color = {"colors": 1e-2} if not coefficients else {name: RATES[name] for name in ("sh0", "sh_rest")}
    rates = {**{name: rate for name, rate in RATES.items() if not name.startswith("sh")}, **color}
    rates = {name: rate for name, rate in rates.items() if name in needed or chance.random() < 0.8} or color

    def change(spec: training_pb2.TrainingSpec) -> None:
        weights = {name: chance.choice((0.0, chance.random())) for name in ("l2", "dssim", "opacity", "scale")}
        spec.loss.CopyFrom(training_pb2.Loss(l1=chance.random() + 0.1, **weights))
        spec.loss.padding = chance.choice((training_pb2.PADDING_SAME, training_pb2.PADDING_VALID))
        spec.optimizer.visible_only = chance.random() < 0.5
        for rate in spec.optimizer.rates.values():
            if chance.random() < 0.5:
                rate.final, rate.steps = rate.initial * 0.01, 5
        spec.sh_degree_every = chance.choice((0, 2)) if coefficients else 0
        settings = spec.gaussians
        settings.semantics = chance.choice(
            (gaussians_pb2.GAUSSIAN_SEMANTICS_EXACT, gaussians_pb2.GAUSSIAN_SEMANTICS_GSPLAT)
        )
        settings.antialiased = chance.random() < 0.5
        if chance.random() < 0.5:
            settings.background.extend((0.2, 0.5, 0.7))
        if kind == "adaptive":
            spec.density.adaptive.absolute_gradients = chance.random() < 0.5

    state = state_of(kind, rates, change, levels=chance.random() < 0.5, coefficients=coefficients)
    return state, [chance.sample(range(3), chance.choice((1, 1, 2, 3))) for _ in range(STEPS)]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("seed", range(8))
def test_steps_without_python_are_the_same_bits(seed: int, isa: str) -> None:
    (expected, views), (state, _) = random_state(seed), random_state(seed)
    with instruction_set(isa), maker_of() as maker:
        found, resident = maker.all(state, views)
        for number, each in enumerate(views):
            assert done_message(number, found[number]) == done_message(number, plain_step(expected, each)), number
    assert everything(state) == everything(expected)
    assert resident >= 3


@pytest.mark.parametrize("kind", DENSITIES)
def test_a_step_without_room_changes_nothing(kind: str) -> None:
    state, expected = state_of(kind, RATES), state_of(kind, RATES)
    with maker_of() as maker:
        maker.all(state, [[0], [1]])
        for each in ([0], [1]):
            plain_step(expected, each)
        while not maker.steps.length(state, [[2]]):
            plain_step(state, [2])
            plain_step(expected, [2])
        before, failures = everything(state), 0
        for room in range(0, 1 << 20, 1 << 10):
            memory: Any = SimpleNamespace(room_bytes=lambda cost, free, room=room: room, free_bytes=0)
            if maker.run(state, [[2]], memory=memory) is not None:
                break
            failures += 1
            assert everything(state) == before, room
        assert failures > 10
        plain_step(expected, [2])
        assert everything(state) == everything(expected)


def test_no_step_of_a_run_is_made_after_one_that_failed() -> None:
    state = state_of("none", RATES)
    with maker_of() as maker:
        memory: Any = SimpleNamespace(room_bytes=lambda cost, free: 1000, free_bytes=0)
        before = everything(state)
        assert maker.run(state, [[0], [1], [2]], memory=memory) is None
        assert everything(state) == before


def test_jobs_of_others_run_between_two_steps() -> None:
    state, ran = state_of("none", RATES), []
    with maker_of() as maker:
        go = threading.Event()
        blocker = threading.Thread(target=lambda: maker.executor.run(go.wait, Part("other")))
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
    assert ran[0].run.done == 30 and state.step == 30
    # Not after the whole run.
    assert max(seen) < 30


def test_a_call_that_ends_ends_its_run_between_two_steps() -> None:
    state, expected = state_of("none", RATES), state_of("none", RATES)
    call, errors = Part(), []
    with maker_of() as maker:
        go = threading.Event()
        blocker = threading.Thread(target=lambda: maker.executor.run(go.wait, Part("other")))
        blocker.start()

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


@pytest.mark.parametrize(
    "change",
    [
        lambda spec: setattr(spec.loss, "depth", 0.1),
        lambda spec: setattr(spec.loss, "alpha", 0.1),
        lambda spec: setattr(spec.gaussians, "response", gaussians_pb2.RESPONSE_RAY),
        lambda spec: setattr(spec.gaussians, "projection_method", gaussians_pb2.PROJECTION_METHOD_UNSCENTED),
        lambda spec: spec.optimizer.rates["exposures"].MergeFrom(training_pb2.Rate(initial=1e-3)),
        lambda spec: spec.optimizer.rates["poses"].MergeFrom(training_pb2.Rate(initial=1e-3)),
    ],
)
def test_what_is_unusual_needs_python(change: Any) -> None:
    with maker_of() as maker:
        assert maker.steps.length(state_of("none", RATES, change), [[0]]) == 0
        assert maker.steps.length(state_of("none", RATES), [[0]]) == 1
