"""A training has one holder: whoever takes it up ends the previous holder's call, and one of several wins."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from lumigrad.v1 import errors_pb2, training_pb2
from support.calls.gaussian_calls import gaussian_cloud
from support.calls.lane_calls import wait_for
from support.calls.raw_calls import Arrays, RawClient, detail, failure, violation
from support.calls.raw_training import RawTraining, put_target_image, start_of, taken_up
from support.fault_proxy import FaultProxy
from support.threads import run_at_once
from support.workers.worker import WorkerProcess, worker


@pytest.fixture(scope="module")
def spooled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    folder: Path = tmp_path_factory.mktemp("spool")
    # A call that says nothing is not to be ended before the test has it speak.
    patient = ("from lumigrad.server.core import progress", "progress._SILENT_SECONDS = 250.0")
    with worker("--device", "cpu", "--spool", str(folder), before=patient) as process:
        yield process


@pytest.fixture(scope="module")
def own(spooled: WorkerProcess) -> Iterator[RawClient]:
    with RawClient(spooled.target) as raw:
        yield raw


def has_step(training: RawTraining, number: int) -> bool:
    """Returns whether a training makes a step."""
    try:
        return training.step(number).number == number
    except grpc.RpcError:
        return False


def is_lost(client: RawClient, started: training_pb2.TrainingStarted, **fields: int) -> bool:
    """Returns whether a training cannot be taken up."""
    error = failure(RawTraining(client, taken_up(started, **fields)).reply)
    return detail(error, errors_pb2.TrainingLost).training_id == started.training_id


def begun(
    client: RawClient, cloud: Arrays | None = None, **fields: int
) -> tuple[RawTraining, training_pb2.TrainingStarted]:
    training = RawTraining(client, start_of(client, cloud, **fields))
    return training, training.started()


@pytest.mark.parametrize("at_step", [None, 2])
def test_whoever_takes_a_training_up_ends_the_call_before(own: RawClient, at_step: int | None) -> None:
    first, started = begun(own, snapshot_every=1)
    for number in range(3):
        assert first.step(number).snapshotted
    fields = {} if at_step is None else {"at_step": at_step}
    second = RawTraining(own, taken_up(started, **fields))
    again = second.started()
    assert again.step == (3 if at_step is None else at_step)
    # Requests of the former holder have no effect any more.
    for kind in ("publish", "snapshot", "finish"):
        first.send(**{kind: getattr(training_pb2, kind.capitalize())()})
    assert failure(first.reply).code() == grpc.StatusCode.CANCELLED
    assert second.step(again.step).snapshotted
    assert second.publish().scene.version == started.scene.version + 1
    second.close()
    # The second holder's snapshots are there too.
    third = RawTraining(own, taken_up(started, at_step=again.step))
    assert third.started().step <= again.step
    third.finish()
    assert is_lost(own, started)


def step_after_restart(spool: Path, started: training_pb2.TrainingStarted) -> int:
    """Returns the step at which a new worker takes a training up."""
    with worker("--device", "cpu", "--spool", str(spool)) as process, process.channel() as channel:
        training = RawTraining(RawClient("", channel=channel), taken_up(started))
        step: int = training.started().step
        training.finish()
        return step


def test_steps_that_were_given_up_do_not_come_back_with_another_worker(tmp_path: Path) -> None:
    with worker("--device", "cpu", "--spool", str(tmp_path)) as process, process.channel() as channel:
        own = RawClient("", channel=channel)
        first, started = begun(own, snapshot_every=2)
        for number in range(4):
            first.step(number)
        assert RawTraining(own, taken_up(started, at_step=2)).started().step == 2
        process.process.kill()
        process.process.wait()
    assert step_after_restart(tmp_path, started) == 2


def test_what_is_in_a_snapshot_has_its_target_images_in_the_spool_too(tmp_path: Path) -> None:
    with worker("--device", "cpu", "--spool", str(tmp_path)) as process, process.channel() as channel:
        own = RawClient("", channel=channel)
        start = start_of(own, snapshot_every=1)
        # These images keep the thread busy that writes scenes.
        for seed in range(100, 130):
            put_target_image(own, seed, (512, 512))
        for index, view in enumerate(start.views):
            view.target = put_target_image(own, 200 + index)
        training = RawTraining(own, start)
        started = training.started()
        assert training.step(0).snapshotted
        process.process.kill()
        process.process.wait()
    assert step_after_restart(tmp_path, started) == 1


def test_steps_under_way_are_made_whole_or_not_at_all(own: RawClient) -> None:
    """The second holder continues where the first was stopped, and gets what an undisturbed training gets."""
    count, steps = 40, []
    undisturbed, _ = begun(own, gaussian_cloud(), seed=3)
    expected = [undisturbed.step(number, [number % 3]).loss for number in range(count)]
    undisturbed.finish()
    training, started = begun(own, gaussian_cloud(), seed=3)
    for number in range(count):
        training.send(step=training_pb2.Step(number=number, views=[number % 3]))
    steps.append(training.reply().done)
    while len(steps) < count:
        training = RawTraining(own, taken_up(started, undelivered=steps[-1].number + 1))
        again = training.started()
        steps += again.done
        assert again.step == steps[-1].number + 1
        for number in range(again.step, count):
            training.send(step=training_pb2.Step(number=number, views=[number % 3]))
        if len(steps) < count:
            steps.append(training.reply().done)
    assert [step.number for step in steps] == list(range(count))
    assert [step.loss for step in steps] == expected
    training.close()


def test_one_of_several_wins(own: RawClient) -> None:
    first, started = begun(own)
    assert has_step(first, 0)
    barrier, results = threading.Barrier(6), []

    def take_up() -> None:
        barrier.wait()
        training = RawTraining(own, taken_up(started))
        results.append((training, failure_or_none(training)))

    run_at_once(*[take_up] * 6)
    assert len(results) == 6 and not has_step(first, 1)
    winners = [training for training, error in results if error is None and has_step(training, 1)]
    assert len(winners) == 1
    winners[0].finish()


def failure_or_none(training: RawTraining) -> grpc.RpcError | None:
    try:
        training.started()
    except grpc.RpcError as error:
        return error
    return None


def test_one_of_several_wins_that_read_the_snapshot(tmp_path: Path) -> None:
    options = ("--device", "cpu", "--spool", str(tmp_path / "spool"))
    with worker(*options) as process:
        client = RawClient(process.target)
        first, started = begun(client, snapshot_every=1)
        first.step(0)
        first.close()
    with worker(*options) as process:
        client = RawClient(process.target)
        trainings = [RawTraining(client, taken_up(started)) for _ in range(4)]
        alive = [training for training in trainings if failure_or_none(training) is None]
        assert sum(has_step(training, 1) for training in alive) == 1
        for training in trainings:
            training.close()


# A call with another lease waits before it reads a snapshot, until there is a file.
_SLOW_READ = """
import time
from pathlib import Path
from lumigrad.server.training import snapshots

def read(training, *rest, read=snapshots.read):
    if training.lease == "another":
        Path({waits!r}).touch()
        while not Path({goes_on!r}).exists():
            time.sleep(0.01)
    return read(training, *rest)

snapshots.read = read
"""


def test_a_call_with_another_lease_does_not_hold_the_training_in_the_spool(tmp_path: Path) -> None:
    options = ("--device", "cpu", "--spool", str(tmp_path / "spool"))
    with worker(*options) as process, RawClient(process.target) as client:
        first, started = begun(client, snapshot_every=1)
        first.step(0)
        first.close()
    waits, goes_on = tmp_path / "waits", tmp_path / "goes_on"
    before = _SLOW_READ.format(waits=str(waits), goes_on=str(goes_on))
    with worker(*options, before=(before,)) as process, RawClient(process.target) as client:
        start = taken_up(started)
        start.lease = "another"
        other = RawTraining(client, start)
        wait_for(waits.exists)
        try:
            own = RawTraining(client, taken_up(started))
            assert own.started().step == 1
        finally:
            goes_on.touch()
        error = failure(other.reply)
        assert detail(error, errors_pb2.TrainingLost).training_id == started.training_id
        assert has_step(own, 1)
        own.finish()


def test_a_finish_and_a_take_over_do_not_both_happen(own: RawClient) -> None:
    outcomes = set()
    for _ in range(12):
        first, started = begun(own, snapshot_every=1)
        first.step(0)
        first.send(finish=training_pb2.Finish())
        second = RawTraining(own, taken_up(started))
        is_taken = failure_or_none(second) is None
        try:
            is_finished = first.reply().HasField("finished")
        except grpc.RpcError:
            is_finished = False
        if is_taken:
            assert not is_finished
            assert second.step(1).snapshotted
            second.close()
            third = RawTraining(own, taken_up(started))
            assert third.started().snapshot_step == 2
            third.finish()
        else:
            assert is_lost(own, started)
        outcomes.add(is_taken)


def test_the_former_holder_cannot_take_it_back_by_itself(own: RawClient) -> None:
    _, started = begun(own)
    assert started.holder == 1
    second = RawTraining(own, taken_up(started))
    assert second.started().holder == 2
    error = failure(RawTraining(own, taken_up(started, holder=1)).reply)
    assert detail(error, errors_pb2.TrainingHeld).scene_id == started.scene.scene_id
    # The second holder was not disturbed, and may itself come back.
    assert has_step(second, 0)
    third = RawTraining(own, taken_up(started, holder=2))
    assert third.started().holder == 2
    # Anybody may take the training up with the lease alone.
    fourth = RawTraining(own, taken_up(started))
    assert fourth.started().holder == 3
    fourth.finish()


@pytest.mark.parametrize("position", range(0, 700, 50))
def test_a_start_that_is_repeated_finds_its_training(position: int, spooled: WorkerProcess, own: RawClient) -> None:
    """The reply to the first start is lost at some position."""
    start = start_of(own)
    start.start_id = f"start {position}"
    with FaultProxy(spooled.target) as proxy:
        proxy.down.cut(after=position)
        far = RawClient(proxy.target)
        lost = RawTraining(far, start)
        known = failure_or_none(lost) is None and lost.call.is_active()
        training = RawTraining(own, start)
        assert training.started().step == 0
        assert has_step(training, 0) and not (known and has_step(lost, 1))
        # The scene is free as soon as its training has ended.
        training.finish()
        start.start_id = ""
        again = RawTraining(own, start)
        again.started()
        again.finish()
        far.close()


@pytest.mark.parametrize("is_known", [False, True])
def test_a_call_does_not_take_a_training_from_a_later_one(own: RawClient, is_known: bool) -> None:
    """The start that a broken connection delayed arrives after the one that its client sent instead."""
    delayed = RawTraining(own)
    # The worker announces the call although it has no request yet.
    assert delayed.call.initial_metadata()
    start = start_of(own)
    start.start_id = f"delayed {is_known}"
    training = RawTraining(own, start)
    started = training.started()
    delayed.send(start=taken_up(started) if is_known else start)
    assert detail(failure(delayed.reply), errors_pb2.TrainingHeld).scene_id == started.scene.scene_id
    assert has_step(training, 0)
    training.finish()


def test_starts_at_once_with_one_id_begin_one_training(own: RawClient) -> None:
    start = start_of(own)
    start.start_id = "at once"
    trainings = [RawTraining(own, start) for _ in range(4)]
    alive = [training for training in trainings if failure_or_none(training) is None]
    assert sum(has_step(training, 0) for training in alive) == 1
    start.start_id = "another"
    error = failure(RawTraining(own, start).reply)
    assert detail(error, errors_pb2.TrainingHeld).scene_id == start.scene.scene_id
    start.start_id = "x" * 65
    assert violation(failure(RawTraining(own, start).reply))[0] == "start.start_id"


def test_a_training_that_takes_most_of_its_share_goes_back(tmp_path: Path) -> None:
    options = ("--device", "cpu", "--spool", str(tmp_path), "--training-mib", "10", "--max-payload-mib", "16")
    with worker(*options) as process, RawClient(process.target) as client:
        first, started = begun(client, gaussian_cloud(8000, coefficients=16, seed=1), snapshot_every=2)
        nbytes = process.metric("lumigrad_training_bytes")
        assert nbytes > 5.5 * (1 << 20)
        losses = [first.step(number).loss for number in range(5)]
        # No snapshot is that old, so the training stays as it was.
        assert is_lost(client, started, at_step=1)
        second = RawTraining(client, taken_up(started, at_step=2))
        assert second.started().step == 2
        assert [second.step(number).loss for number in range(2, 5)] == losses[2:]
        assert process.metric("lumigrad_training_bytes") == nbytes
        second.finish()
