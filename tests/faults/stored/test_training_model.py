"""Any order of calls, deaths, signals, deadlines and evictions: acknowledged data is found, and trainings go on.

Runs until each rule has done something, and for LUMIGRAD_FUZZ_SECONDS, 8 by default.
"""

from __future__ import annotations

import functools
import itertools
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from lumigrad.client import (
    Client,
    Gaussians,
    SceneHandle,
    SceneNotFound,
    Spheres,
    TrainingHeld,
    TrainingLost,
    VersionMismatch,
)
from lumigrad.client.errors import LumigradError
from lumigrad.client.training import Trainer
from lumigrad.protos.wire import Frame
from lumigrad.v1 import render_pb2
from support.calls.repeats import EXPLORES
from support.models.handle_machine import CAMERA, USERS, WHICH
from support.models.model_scenes import COLORS, CONTENTS, Parameters, gradient, picture, spec
from support.training.scenes import Lesson, gaussian_lesson
from support.workers.balance import wait_until_released
from support.workers.model_worker import TOKENS, ModelWorker, model_worker, noted

LESSON: Lesson = gaussian_lesson(60)
RANGE = {"gamma": 0.1, "max_depth": 20.0, "min_depth": 0.5}
RATES = {"means": 2e-3, "scales": 5e-3, "opacities": 2e-2, "sh0": 2e-3}
MOST_STEPS = 24


@dataclass(eq=False)
class Stored:
    """A scene without the client's copy of it.

    Attributes:
        is_durable: It must be found after the worker was killed; otherwise it may be lost then.
    """

    tenant: str
    handle: SceneHandle
    parameters: Parameters
    is_durable: bool = False


@dataclass(eq=False)
class Open:
    """A training, its client, and the handle that it published last."""

    user: int
    trainer: Trainer
    step: int = 0
    published: SceneHandle | None = None
    is_refused: bool = False


def reference(place: ModelWorker) -> list[Gaussians]:
    """The scene of an undisturbed training after each number of steps."""
    with Client(place.process.target, token=TOKENS["alice"]) as client, begun(client, 0) as trainer:
        found = [trainer.scene()]
        for _ in trainer.steps(MOST_STEPS, in_flight=1):
            found.append(trainer.scene())
    return [scene for scene in found if isinstance(scene, Gaussians)]


def begun(client: Client, snapshot_every: int) -> Trainer:
    """A new training."""
    images = LESSON.wrapped(client)
    options = {"rates": RATES, "seed": 5, "snapshot_every": snapshot_every}
    return client.trainer(client.put(LESSON.scene), LESSON.cameras, images, **options)


# The names of all rules.
RULES: set[str] = set()


def counted(step: Callable[..., bool | None]) -> Callable[..., None]:
    """Notes a rule of the machine, and counts it as taken unless it returns False because it had nothing to do."""
    done = noted(step)
    RULES.add(step.__name__)

    @functools.wraps(step)
    def take(machine: TrainingMachine, **arguments: object) -> None:
        if done(machine, **arguments) is not False:
            machine.taken.add(step.__name__)

    return take


class TrainingMachine(RuleBasedStateMachine):
    """Three clients of two tenants, one of them without shared memory."""

    # Set before the machine runs.
    place: ModelWorker
    expected: list[Gaussians]
    # The rules that have done something.
    taken: ClassVar[set[str]]

    def __init__(self) -> None:
        super().__init__()
        target = self.place.process.target
        lanes = ("auto", "stream", "auto")
        self.clients = [
            Client(target, token=TOKENS[tenant], retry_s=60, lane=lane)  # type: ignore[arg-type]
            for tenant, lane in zip(USERS, lanes, strict=True)
        ]
        self.stored: dict[str, Stored] = {}
        self.deleted: list[Stored] = []
        self.open: dict[str, Open] = {}
        for client in self.clients[1:]:
            for handle in client.list():
                client.delete(handle)

    @rule(user=st.integers(0, 2), snapshot_every=st.sampled_from((1, 3, 100)))
    @counted
    def begin(self, user: int, snapshot_every: int) -> bool | None:
        """Begin a training, one for each tenant."""
        if not self._has_time or USERS[user] in self.open:
            return False
        self.open[USERS[user]] = Open(user, begun(self.clients[user], snapshot_every))
        return None

    @rule(which=WHICH, count=st.integers(1, 4))
    @counted
    def step(self, which: int, count: int) -> bool | None:
        """Make steps: each once, in order."""
        training = self._unfinished(which)
        return training is not None and self._step(training, min(count, MOST_STEPS - training.step))

    @rule(which=WHICH, count=st.integers(2, 4))
    @counted
    def leave(self, which: int, count: int) -> bool | None:
        """Leave a loop early: all steps that were sent are made."""
        training = self._unfinished(which)
        if training is None:
            return False
        count = min(count, MOST_STEPS - training.step)
        for step in training.trainer.steps(count, in_flight=count):
            assert step.number == training.step
            break
        scene = training.trainer.scene()
        made = [n for n in range(training.step + 1, training.step + count + 1) if _are_equal(scene, self.expected[n])]
        assert len(made) == 1, "a scene between two steps"
        (training.step,) = made
        return None

    @rule(which=WHICH)
    @counted
    def look(self, which: int) -> bool | None:
        """Leave a loop before gradients of its images were sent: no step is made."""
        training = self._unfinished(which)
        if training is None:
            return False
        for batch in training.trainer.batches(2, in_flight=2):
            assert np.isfinite(batch.color).all()
            break
        return None

    @rule(which=WHICH)
    @counted
    def publish(self, which: int) -> bool | None:
        """Publish, and get the published scene."""
        training = self._training(which)
        if training is None:
            return False
        try:
            handle = training.trainer.publish()
        except VersionMismatch:
            assert training.is_refused, "nobody else has updated the scene"
            return None
        assert not training.is_refused, "somebody else's update was overwritten"
        before = training.published
        assert before is None or handle.version > before.version
        training.published = handle
        self._check_published(training)
        return None

    @rule(which=WHICH)
    @counted
    def publish_beside(self, which: int) -> bool | None:
        """Update a training's published scene by another client of its tenant."""
        training = self._training(which)
        if training is None or training.published is None or training.is_refused:
            return False
        client = self.clients[training.user]
        client.update(training.published, opacities=np.full(training.published.count, 0.5))
        training.is_refused = True
        return None

    @rule(which=WHICH, user=st.integers(0, 1))
    @counted
    def resume(self, which: int, user: int) -> bool | None:
        """Resume a training by another client of its tenant, or by its own."""
        training = self._training(which)
        if training is None:
            return False
        before, user = training.trainer, user if USERS[training.user] == USERS[user] else training.user
        training.user = user
        training.trainer = self.clients[user].resume_trainer(before.training_id, before.lease)
        assert training.trainer.step_number == training.step
        if training.step < MOST_STEPS:
            try:
                before.step()
            except TrainingHeld:
                return None
            raise AssertionError("two clients hold one training")
        return None

    @rule(which=WHICH, seconds=st.sampled_from((0.001, 0.01)))
    @counted
    def give_up_resuming(self, which: int, seconds: float) -> bool | None:
        """Resume a training in too little time, and then in enough."""
        training = self._training(which)
        if training is None:
            return False
        client, before = self.clients[training.user], training.trainer
        with suppress(LumigradError):
            before = client.resume_trainer(before.training_id, before.lease, timeout_s=seconds)
        training.trainer = client.resume_trainer(before.training_id, before.lease)
        assert training.trainer.step_number == training.step
        return None

    @rule(which=WHICH)
    @counted
    def snapshot(self, which: int) -> bool | None:
        """Write a snapshot."""
        training = self._training(which)
        if training is None:
            return False
        assert training.trainer.snapshot() == training.step
        return None

    @rule(which=WHICH, is_early=st.sampled_from((False, False, True)))
    @counted
    def finish(self, which: int, is_early: bool) -> bool | None:
        """End a training, usually one that has made all its steps."""
        training = self._training(which)
        if training is None or not (is_early or training.step == MOST_STEPS):
            return False
        training.trainer.close()
        del self.open[USERS[training.user]]
        return None

    @rule(user=st.integers(0, 2), content=st.integers(0, CONTENTS - 1))
    @counted
    def put(self, user: int, content: int) -> bool | None:
        """Store a scene; every third content pushes others out of memory."""
        if not self._has_time:
            return False
        parameters = Parameters(content)
        handle = self.clients[user].put(Spheres(**parameters.tensors))
        plain = self.clients[user].get(handle.scene_id)
        self.stored.setdefault(handle.scene_id, Stored(USERS[user], plain, parameters))
        self._render(self.stored[handle.scene_id])
        return None

    @rule(which=WHICH, colors=st.integers(1, COLORS))
    @counted
    def update(self, which: int, colors: int) -> bool | None:
        """Update a scene."""
        stored = self._scene(which)
        if stored is None:
            return False
        changed = Parameters(stored.parameters.content, colors)
        stored.handle = self._client(stored).update(stored.handle, colors=changed.new_colors)
        stored.parameters = changed
        return None

    @rule(which=WHICH)
    @counted
    def render(self, which: int) -> bool | None:
        """Render a scene, and differentiate."""
        stored = self._scene(which)
        return stored is not None and self._render(stored)

    @rule(which=WHICH)
    @counted
    def delete(self, which: int) -> bool | None:
        """Delete a scene: it does not come back."""
        stored = self._scene(which)
        if stored is None:
            return False
        self._client(stored).delete(stored.handle)
        del self.stored[stored.handle.scene_id]
        self.deleted.append(stored)
        return None

    @rule(which=WHICH)
    @counted
    def pry(self, which: int) -> bool | None:
        """Ask for objects of the other tenant, or deleted ones."""
        stored, training = self._scene(which), self._training(which)
        if training is not None:
            other = self.clients[2 if training.user < 2 else 0]
            with pytest.raises(TrainingLost):
                other.resume_trainer(training.trainer.training_id, training.trainer.lease)
        for gone in self.deleted[-3:]:
            with pytest.raises(SceneNotFound):
                self._client(gone).render(gone.handle, CAMERA, **RANGE)
        if stored is None:
            return False
        other = self.clients[2 if stored.tenant == USERS[0] else 0]
        for call in (other.get, other.delete):
            with pytest.raises(SceneNotFound):
                call(stored.handle.scene_id)
        return None

    @rule(which=WHICH, seconds=st.sampled_from((0.001, 0.01)), is_cancelled=st.booleans())
    @counted
    def give_up(self, which: int, seconds: float, is_cancelled: bool) -> bool | None:
        """Calls that end early, in any stage."""
        stored = self._scene(which)
        if stored is None:
            return False
        if is_cancelled:
            request = Frame(render_pb2.RenderRequest(spec=spec(stored.handle.scene_id)))
            self.place.clients[stored.tenant].render_stub.Render(iter([request]), timeout=30).cancel()
        with suppress(LumigradError):
            self._client(stored).render(stored.handle, CAMERA, timeout_s=seconds, **RANGE)
        with suppress(LumigradError):
            self._client(stored).put(Spheres(**Parameters(0).tensors), timeout_s=seconds)
        return None

    @rule(rests=st.booleans())
    @counted
    def die(self, rests: bool) -> bool | None:
        """Kill the worker."""
        if not self._may_end():
            return False
        if rests:
            time.sleep(0.2)
        if self.place.kill():
            self._check(lambda stored: stored.is_durable)
        return None

    @rule()
    @counted
    def stop(self) -> bool | None:
        """Have the worker replaced by a signal, which loses nothing."""
        if not self._may_end():
            return False
        process = self.place.process
        restarts = process.log.count("worker started")
        os.kill(process.worker_pid, signal.SIGTERM)
        process.wait_for_log("worker started", count=restarts + 1)
        self.place.reconnect()
        self._check(lambda _: True)
        return None

    def teardown(self) -> None:
        """Fails unless every account returns to zero."""
        for training in self.open.values():
            training.trainer.close()
        for client in self.clients:
            client.close()
        wait_until_released([self.place.process])

    def _check(self, must_be_found: object) -> None:
        """Check that durable data is found after the worker was replaced, and go on with each training."""
        for scene_id, stored in list(self.stored.items()):
            try:
                self._render(stored)
                stored.is_durable = True
            except SceneNotFound:
                assert callable(must_be_found) and not must_be_found(stored), "an acknowledged scene was lost"
                del self.stored[scene_id]
        for training in self.open.values():
            if training.published is not None and not training.is_refused:
                assert self._get(training).version == training.published.version
            self._step(training, min(1, MOST_STEPS - training.step))

    def _step(self, training: Open, count: int) -> None:
        numbers = [step.number for step in training.trainer.steps(count, in_flight=2)]
        assert numbers == list(range(training.step, training.step + count))
        training.step += count
        _assert_equal(training.trainer.scene(), self.expected[training.step])

    def _check_published(self, training: Open) -> None:
        found = self._get(training)
        assert training.published is not None and found.version == training.published.version
        _assert_equal(found.scene, self.expected[training.step])

    def _get(self, training: Open) -> SceneHandle:
        assert training.published is not None
        return self.clients[training.user].get(training.published.scene_id, with_tensors=True)

    def _render(self, stored: Stored) -> None:
        frame = self._client(stored).render(stored.handle, CAMERA, retain=True, **RANGE)
        assert np.array_equal(frame.color, picture(stored.parameters)[0]), "a wrong picture"
        found = frame.backward(np.ones_like(frame.color)).colors
        assert np.array_equal(found, gradient(stored.parameters)), "a wrong gradient"
        self.place.answers += 1

    def _may_end(self) -> bool:
        """Whether the worker may be replaced now: rarely, since that takes as long as many calls."""
        if not self._has_time or self.place.answers < 6:
            return False
        self.place.answers = 0
        return True

    @property
    def _has_time(self) -> bool:
        return time.monotonic() < self.place.until

    def _training(self, which: int) -> Open | None:
        found = list(self.open.values())
        return found[which % len(found)] if found and self._has_time else None

    def _unfinished(self, which: int) -> Open | None:
        training = self._training(which)
        return None if training is None or training.step == MOST_STEPS else training

    def _scene(self, which: int) -> Stored | None:
        found = list(self.stored.values())
        return found[which % len(found)] if found and self._has_time else None

    def _client(self, stored: Stored) -> Client:
        return self.clients[USERS.index(stored.tenant)]


def _are_equal(found: object, expected: Gaussians) -> bool:
    assert isinstance(found, Gaussians)
    return all(np.array_equal(array, expected.tensors[name]) for name, array in found.tensors.items())


def _assert_equal(found: object, expected: Gaussians) -> None:
    assert _are_equal(found, expected), "another scene than that of an undisturbed training"


SECONDS = float(os.environ.get("LUMIGRAD_FUZZ_SECONDS", "8"))
# The time limit for all rules, below the time-out of a test, which would not name the missing ones.
MOST_SECONDS = 200.0
# Examples run in batches of this size until everything is done.
BATCH = settings(
    max_examples=2,
    stateful_step_count=50,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate,),
)


def test_nothing_is_lost_where_trainings_and_scenes_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with model_worker(tmp_path, has_spool=True) as place:
        monkeypatch.setattr(TrainingMachine, "place", place, raising=False)
        monkeypatch.setattr(TrainingMachine, "expected", reference(place), raising=False)
        monkeypatch.setattr(TrainingMachine, "taken", taken := set(), raising=False)
        end = time.monotonic() + SECONDS
        try:
            for number in itertools.count():
                # Different steps each time, but the same in every run.
                machine = TrainingMachine if EXPLORES else seed(number)(TrainingMachine)
                run_state_machine_as_test(machine, settings=BATCH)
                if taken == RULES:
                    place.until = end
                    if time.monotonic() >= end:
                        break
                elif time.monotonic() > end + MOST_SECONDS:
                    raise AssertionError(f"rules that had nothing to do: {', '.join(sorted(RULES - taken))}")
        except Exception as error:
            steps = "\n".join([*place.error.splitlines()[-12:], "after these steps:", *place.history[-25:]])
            raise AssertionError(steps) from error
        assert " ERROR " not in place.process.log.replace("ERROR worker ended", "")
