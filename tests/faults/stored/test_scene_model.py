"""Any order of calls, deaths and evictions against a model of what is stored: nobody ever sees a wrong picture.

The model is small: a scene is its name, a version, and the parameters of each version. For LUMIGRAD_FUZZ_SECONDS for
each of two sets of rules, with a spool and without, 3 unless set.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from support.calls.repeats import EXPLORES
from support.models.handle_machine import HandleMachine
from support.models.scene_machine import SceneMachine
from support.workers.model_worker import ModelWorker, model_worker

SECONDS = float(os.environ.get("LUMIGRAD_FUZZ_SECONDS", "3"))
# As many at a time, until the time is up: hypothesis itself counts examples only, and begins with the simplest.
BATCH = settings(
    max_examples=4,
    stateful_step_count=60,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate,),
)


@pytest.fixture(scope="module", params=[False, True], ids=["memory", "spool"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelWorker]:
    with model_worker(tmp_path_factory.mktemp("model"), has_spool=request.param) as made:
        yield made


@pytest.mark.parametrize("machine", [SceneMachine, HandleMachine])
def test_nobody_ever_sees_a_wrong_picture(
    place: ModelWorker, machine: type[SceneMachine | HandleMachine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "place", place, raising=False)
    place.until = time.monotonic() + SECONDS
    try:
        for number in itertools.count():
            # Other steps each time, but the same in every run.
            run_state_machine_as_test(machine if EXPLORES else seed(number)(machine), settings=BATCH)
            if time.monotonic() >= place.until:
                break
    except Exception as error:
        steps = "\n".join(place.history[-20:])
        raise AssertionError(f"after these steps, the last of which failed:\n{steps}\n{place.error}") from error
    assert " ERROR " not in place.process.log.replace("ERROR worker ended", "")
