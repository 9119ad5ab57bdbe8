"""One request for several steps makes the same steps as several requests."""

from __future__ import annotations

from typing import Any

import pytest

from lumigrad.v1 import density_pb2, training_pb2
from support.calls.gaussian_calls import gaussian_cloud
from support.calls.raw_calls import RawClient, failure, violation
from support.calls.raw_training import RawTraining, start_of

VIEWS = [0, 2, 1, 1, 0, 2, 0]


def begun(client: RawClient, **fields: Any) -> RawTraining:
    """A training of Gaussians that no other training has."""
    training = RawTraining(client, start_of(client, **fields))
    assert training.started().most_steps >= len(VIEWS)
    return training


def told(training: RawTraining, count: int) -> list[training_pb2.StepDone]:
    """Returns the results of this many steps of requests with a count."""
    found: list[training_pb2.StepDone] = []
    while len(found) < count:
        reply = training.reply()
        assert reply.HasField("steps") and len(reply.steps.done) > 0
        found += reply.steps.done
    return found


@pytest.mark.parametrize("is_controlled", [False, True])
def test_steps_of_one_request_are_those_of_several(is_controlled: bool, client: RawClient) -> None:
    # Rows are added at step 4, in the middle of a run.
    density = density_pb2.DensityControl(
        extent=2.0, mcmc=density_pb2.McmcStrategy(start=3, every=4, cap=200, noise=5e3, min_opacity=0.1)
    )
    fields: dict[str, Any] = {"density": density} if is_controlled else {}
    cloud = gaussian_cloud(seed=91 + is_controlled)
    one = RawTraining(client, start_of(client, cloud, **fields))
    one.started()
    one.send(step=training_pb2.Step(number=0, count=len(VIEWS), views=VIEWS))
    found = told(one, len(VIEWS))
    assert one.step(len(VIEWS)).number == len(VIEWS)
    one.finish()
    # The first training has published nothing, so both begin with the same scene.
    several = RawTraining(client, start_of(client, cloud, **fields))
    several.started()
    assert found == [several.step(number, [view]) for number, view in enumerate(VIEWS)]
    assert [done.number for done in found] == list(range(len(VIEWS)))
    assert sum(done.HasField("density") for done in found) == is_controlled
    several.finish()


def test_the_worker_chooses_views_of_each_step(client: RawClient) -> None:
    training = begun(client)
    training.send(step=training_pb2.Step(number=0, count=6, batch=1))
    found = told(training, 6)
    assert sorted(view for done in found[:3] for view in done.views) == [0, 1, 2]
    assert sorted(view for done in found[3:] for view in done.views) == [0, 1, 2]
    training.finish()


def test_steps_before_one_that_is_refused_are_made(client: RawClient) -> None:
    training = begun(client)
    training.send(step=training_pb2.Step(number=0, count=4, views=[0, 1, 7, 2]))
    assert [done.number for done in told(training, 2)] == [0, 1]
    field, _ = violation(failure(training.reply))
    assert field == "step.views"


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"count": 1000, "batch": 1}, "step.count"),
        ({"count": 2, "batch": 1, "outputs": ["color"]}, "step.count"),
        ({"count": 2, "batch": 1, "own_loss": True}, "step.count"),
        ({"count": 2, "views": [0, 1, 2]}, "step.views"),
        ({"count": 2, "views": [0]}, "step.views"),
    ],
)
def test_a_wrong_count_is_refused(wrong: dict[str, Any], field: str, client: RawClient) -> None:
    training = begun(client)
    training.send(step=training_pb2.Step(number=0, **wrong))
    assert violation(failure(training.reply))[0] == field
