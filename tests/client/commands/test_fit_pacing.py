"""The length of a fit, in steps or in seconds, which its schedules follow."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from lumigrad.client.fitting.pacing import BySeconds, BySteps, Pacing
from lumigrad.client.fitting.recipe import Schedule
from lumigrad.client.training.exchange import Request
from lumigrad.v1 import training_pb2

STEPS = 7000


@dataclass
class Fit:
    """A fit whose steps and previews take known times on a simulated clock.

    Attributes:
        seconds_of: how long a step takes, by the share of the schedule that has passed.
        preview: how long a preview takes, seconds.
        places: for each step that was made, where it is in the schedules, in steps.
        previews: the steps before which there were previews.
        kept: the seconds that were noted.
    """

    seconds_of: Callable[[float], float]
    preview: float = 0.0
    now: float = 100.0
    number: int = 0
    places: list[float] = field(default_factory=list)
    previews: list[int] = field(default_factory=list)
    kept: list[float] = field(default_factory=list)

    def by_seconds(self, seconds: float, every: int | None = None, used: float = 0.0) -> BySeconds:
        return BySeconds(seconds, STEPS, every, used, self.kept.append, lambda: self.now)

    def run(self, pacing: Pacing) -> None:
        while not (self.previews and pacing.is_over(self.number)):
            for count, pace in pacing.parts(lambda: self.number):
                for _ in range(count):
                    self.places.append(self.number * pace)
                    self.now += self.seconds_of(self.number * pace / STEPS)
                    self.number += 1
            self.previews.append(self.number)
            self.now += self.preview


def test_a_fit_by_steps_has_a_preview_after_each_tenth() -> None:
    fit = Fit(lambda share: 1.0)
    fit.run(BySteps(95, None))
    assert fit.previews == [*range(9, 95, 9), 95]
    assert fit.places == list(range(95))
    fit = Fit(lambda share: 1.0, number=50)
    fit.run(BySteps(95, 30))
    assert fit.previews == [60, 90, 95]


@pytest.mark.parametrize("seconds", [2.0, 60.0, 600.0])
@pytest.mark.parametrize("step", [0.0005, 0.01, 0.25])
@pytest.mark.parametrize("preview", [0.0, 0.1])
def test_a_fit_by_seconds_ends_in_time_with_its_schedules(seconds: float, step: float, preview: float) -> None:
    # Later steps take four times as long, and the first one takes a second.
    fit = Fit(lambda share: step + (1.0 if share == 0 else 0.0) + (3 * step if share > 0.4 else 0.0), preview)
    fit.run(fit.by_seconds(seconds))
    used = fit.now - 100.0
    assert used <= seconds * 1.02 + 4 * step
    assert used >= seconds * 0.97 - 4 * step - preview
    assert len(fit.previews) <= 11
    if seconds > 2:
        # Places follow the time, and fall back by 3 % of the schedule at most.
        assert fit.places[-1] == pytest.approx(STEPS, rel=0.1)
        assert all(later > earlier - 0.03 * STEPS for earlier, later in itertools.pairwise(fit.places))


def test_schedules_pass_evenly_where_steps_do() -> None:
    fit = Fit(lambda share: 0.01)
    fit.run(fit.by_seconds(60.0))
    assert len(fit.places) == pytest.approx(6000, abs=130)
    for number, place in enumerate(fit.places[10:], 10):
        assert place == pytest.approx(number * STEPS / 6000, rel=0.02)
    assert fit.previews == pytest.approx([600 * k for k in range(1, 11)], abs=130)


def test_a_fit_that_goes_on_has_the_seconds_that_are_left() -> None:
    fit = Fit(lambda share: 0.1, number=300)
    fit.run(fit.by_seconds(60.0, used=30.0))
    assert fit.now - 100.0 == pytest.approx(30.0, abs=1.3)
    assert fit.places[0] == pytest.approx(STEPS / 2)
    assert fit.kept == sorted(fit.kept) and 30.0 < fit.kept[0] < fit.kept[-1] <= 60.2
    # No time is left.
    late = Fit(lambda share: 0.1, number=600)
    late.run(late.by_seconds(60.0, used=60.0))
    assert not late.places and late.previews == [600]


def test_previews_of_a_fit_by_seconds_come_after_so_many_steps_if_it_says_so() -> None:
    fit = Fit(lambda share: 0.1)
    fit.run(fit.by_seconds(20.0, every=64))
    assert fit.previews[:3] == [64, 128, 192]


def test_small_photographs_come_first_in_the_schedule_not_in_steps() -> None:
    schedule = Schedule(5, 100, seed=0)
    assert all(view >= 5 for (view,) in schedule.views(9, 1, pace=10.0))
    assert all(view < 5 for (view,) in schedule.views(10, 5, pace=10.0))


def test_what_is_said_of_the_progress() -> None:
    assert BySteps(7000, None).text(3000) == "3,000 of 7,000 steps"
    fit = Fit(lambda share: 1.0)
    assert fit.by_seconds(60.0, used=27.2).text(1234) == "1,234 steps, 27 of 60 s"


def test_steps_that_are_sent_again_keep_their_pace() -> None:
    step = training_pb2.Step(number=8, count=8, batch=1, pace=2.5)
    done, again = Request(training_pb2.TrainRequest(step=step), 8, 8).divided(11)
    assert [(part.message.step.number, part.message.step.count) for part in (done, again)] == [(8, 3), (11, 5)]
    assert [part.message.step.pace for part in (done, again)] == [2.5, 2.5]
