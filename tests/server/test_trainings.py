"""What TrainingService answers to starts."""

from __future__ import annotations

from lumigrad.v1 import training_pb2
from support.raw_calls import RawClient, failure, violation
from support.raw_training import RawTraining, start_of


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
