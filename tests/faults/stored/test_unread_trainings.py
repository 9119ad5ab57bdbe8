"""A training whose client does not read delays nobody else."""

from __future__ import annotations

import time
from pathlib import Path

from lumigrad.protos.streams import frames_of
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.v1 import scene_pb2, training_pb2
from support.calls.distance_calls import cuboid, world_of
from support.calls.gaussian_calls import gaussian_cloud
from support.calls.raw_calls import RawClient
from support.calls.raw_training import RawTraining, start_of
from support.workers.spooling import spooling
from support.workers.worker import WorkerProcess, worker_fixture

# Longer than a request takes here.
STALL_SECONDS = 240
process = worker_fixture("--stall-seconds", str(STALL_SECONDS))


def test_a_long_request_behind_replies_that_nobody_reads_delays_no_others(process: WorkerProcess) -> None:
    reader = RawClient(process.target)
    other = RawClient(process.target, [("grpc.use_local_subchannel_pool", 1)])
    start = start_of(reader, gaussian_cloud(60_000))
    training = RawTraining(reader, start)
    training.started()
    # The first reply waits for its reader, and four requests wait for that reply.
    for _ in range(5):
        training.send(get_scene=training_pb2.GetScene())
    time.sleep(1.0)
    long = training_pb2.TrainingStart()
    long.CopyFrom(start)
    long.views.extend([start.views[0]] * 3000)
    training.send(start=long)
    time.sleep(1.0)
    obstacles = [cuboid(1.0, 1.0, 1.0) for _ in range(2048)]
    request = frames_of(scene_pb2.PutRequest(scene=world_of(*obstacles)), PayloadWriter())
    assert other.scene_stub.Put(request, timeout=STALL_SECONDS / 2).scene.version == 1
    training.close()
    for client in (reader, other):
        client.close()


def test_a_training_whose_client_reads_nothing_has_a_snapshot_when_its_worker_stops(tmp_path: Path) -> None:
    with spooling(tmp_path, "--drain-seconds", "20", is_balanced=False) as process, RawClient(process.target) as client:
        training = RawTraining(client, start_of(client, gaussian_cloud(60_000)))
        training.started()
        for _ in range(3):
            training.send(get_scene=training_pb2.GetScene())
        time.sleep(1.0)
        assert process.stop() == 0
        assert len(list(tmp_path.glob("*/*/training/*"))) == 1
