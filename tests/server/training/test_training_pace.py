"""The pace of a step: schedules pass as if all their numbers of steps had been divided by it."""

from __future__ import annotations

import math

import pytest

from lumigrad.v1 import density_pb2, training_pb2
from support.calls.gaussian_calls import gaussian_cloud
from support.calls.raw_calls import RawClient, failure, violation
from support.calls.raw_training import RATES, RawTraining, start_of

STEPS = 8


def start(client: RawClient, strategy: str, scale: int) -> training_pb2.TrainingStart:
    """A start with falling rates, added harmonics and density control, all within `scale` times the usual steps."""
    density = density_pb2.DensityControl(extent=2.0)
    if strategy == "mcmc":
        density.mcmc.CopyFrom(
            density_pb2.McmcStrategy(start=scale, stop=6 * scale, every=2 * scale, cap=200, noise=5e3, min_opacity=0.1)
        )
    else:
        density.adaptive.CopyFrom(
            density_pb2.DefaultStrategy(
                start=scale, stop=6 * scale, every=2 * scale, reset_every=3 * scale, grow_gradient=1e-5
            )
        )
    begun = start_of(client, gaussian_cloud(seed=17), density=density, sh_degree_every=2 * scale)
    for name in RATES:
        rate = begun.spec.optimizer.rates[name]
        rate.final, rate.steps = rate.initial / 10, 5 * scale
    return begun


def done_by(client: RawClient, begun: training_pb2.TrainingStart, paces: list[float]) -> list[training_pb2.StepDone]:
    """Returns the results of steps, each with its pace."""
    training = RawTraining(client, begun)
    training.started()
    found = []
    for number, pace in enumerate(paces):
        training.send(step=training_pb2.Step(number=number, views=[number % 3], pace=pace))
        found.append(training.reply().done)
    training.finish()
    return found


@pytest.mark.parametrize("strategy", ["mcmc", "adaptive"])
def test_a_schedule_that_is_longer_passes_as_fast_at_a_higher_pace(strategy: str, client: RawClient) -> None:
    expected = done_by(client, start(client, strategy, 1), [0.0] * STEPS)
    assert any(done.HasField("density") for done in expected)
    assert done_by(client, start(client, strategy, 1), [1.0] * STEPS) == expected
    assert done_by(client, start(client, strategy, 50), [50.0] * STEPS) == expected
    assert done_by(client, start(client, strategy, 50), [0.0] * STEPS) != expected


def test_the_pace_may_change_with_each_step(client: RawClient) -> None:
    # Rows are added at every second step at pace 2, and at every fourth at pace 1.
    density = density_pb2.DensityControl(extent=2.0)
    density.mcmc.CopyFrom(density_pb2.McmcStrategy(start=0, stop=100, every=4, cap=500, noise=0.0))
    begun = start_of(client, gaussian_cloud(seed=18), density=density)
    done = done_by(client, begun, [2.0] * 5 + [1.0] * 8)
    assert [each.number for each in done if each.HasField("density")] == [2, 4, 8, 12]


@pytest.mark.parametrize("pace", [-1.0, math.nan, math.inf, 1e-9, 1e9])
def test_a_pace_that_is_none_is_refused(pace: float, client: RawClient) -> None:
    training = RawTraining(client, start_of(client))
    training.started()
    training.send(step=training_pb2.Step(number=0, views=[0], pace=pace))
    assert violation(failure(training.reply))[0] == "step.pace"


def test_steps_of_the_clients_own_loss_have_no_pace(client: RawClient) -> None:
    training = RawTraining(client, start_of(client))
    training.started()
    training.send(step=training_pb2.Step(number=0, views=[0], outputs=["color"], own_loss=True, pace=2.0))
    assert violation(failure(training.reply))[0] == "step.pace"
