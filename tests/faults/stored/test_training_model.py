"""Any order of calls, deaths, signals, deadlines and evictions: what was acknowledged is found, and trainings go on.

For LUMIGRAD_FUZZ_SECONDS, 20 unless set.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from support.models.training_machine import TrainingMachine, reference
from support.workers.model_worker import model_worker

SECONDS = float(os.environ.get("LUMIGRAD_FUZZ_SECONDS", "20"))
# An example takes about two seconds; those that begin when the time is up do nothing.
SETTINGS = settings(
    max_examples=max(4, int(SECONDS / 2)),
    stateful_step_count=50,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate,),
)


def test_nothing_is_lost_where_trainings_and_scenes_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with model_worker(tmp_path, has_spool=True) as place:
        monkeypatch.setattr(TrainingMachine, "place", place, raising=False)
        monkeypatch.setattr(TrainingMachine, "expected", reference(place), raising=False)
        place.until = time.monotonic() + SECONDS
        try:
            run_state_machine_as_test(TrainingMachine, settings=SETTINGS)
        except Exception as error:
            steps = "\n".join([*place.error.splitlines()[-12:], "after these steps:", *place.history[-25:]])
            raise AssertionError(steps) from error
        assert " ERROR " not in place.process.log.replace("ERROR worker ended", "")
