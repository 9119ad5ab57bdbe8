"""Answers of TrainingService to starts."""

from __future__ import annotations

from pathlib import Path

from lumigrad.v1 import training_pb2
from support.calls.gaussian_calls import gaussian_cloud
from support.calls.raw_calls import RawClient, failure, violation
from support.calls.raw_training import RawTraining, start_of
from support.workers.worker import worker


def test_a_training_of_several_workers_is_refused(client: RawClient) -> None:
    start = start_of(client)
    start.peers.CopyFrom(training_pb2.Peers(rank=1, size=2, rendezvous="127.0.0.1:9", timeout_seconds=600))
    field, description = violation(failure(RawTraining(client, start).reply))
    assert field == "start.peers" and "one worker" in description
    start.ClearField("peers")
    training = RawTraining(client, start)
    assert training.started().step == 0
    assert training.step(0).terms["l1"] > 0
    training.finish()
    training.close()


def test_a_training_whose_snapshots_are_too_large_is_warned_of(tmp_path: Path) -> None:
    sizes = ("--max-payload-mib", "1", "--transit-mib", "2")
    with worker("--device", "cpu", "--spool", str(tmp_path), *sizes) as process, RawClient(process.target) as client:
        training = RawTraining(client, start_of(client, gaussian_cloud(4000, coefficients=16), snapshot_every=1))
        training.started()
        process.wait_for_log("snapshots are disabled for a training")
        assert not training.step(0).snapshotted
        training.finish()
