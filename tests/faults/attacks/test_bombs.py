"""Requests that are small on the wire and large when decompressed."""

from __future__ import annotations

from typing import Any

import grpc
import psutil
import pytest

from lumigrad.protos.service import SCENE_SERVICE, WORKER_SERVICE, Stub
from lumigrad.protos.wire import Frame
from lumigrad.v1 import scene_pb2, worker_pb2
from support.calls.raw_calls import RawClient, failure, sphere_cloud
from support.workers.worker import WorkerProcess

MIB = 1 << 20


def put(channel: grpc.Channel, data: bytes, compression: grpc.Compression) -> Any:
    frames = [Frame(scene_pb2.PutRequest(payload_bytes=len(data))), Frame(None, memoryview(data))]
    return Stub(channel, SCENE_SERVICE).Put(iter(frames), timeout=60, compression=compression)


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_compressed_requests_are_refused_before_anything_is_unfolded(
    process: WorkerProcess, compression: grpc.Compression
) -> None:
    memory = psutil.Process(process.process.pid).memory_info
    # Zeros, which compress a thousandfold; the message is below gRPC's limit, so that only compression is at stake.
    bomb = bytes(3 * MIB)
    with process.channel() as channel:
        assert (
            failure(lambda: put(channel, bomb, grpc.Compression.NoCompression)).code() != grpc.StatusCode.UNIMPLEMENTED
        )
        before = memory().rss
        for _ in range(20):
            error = failure(lambda: put(channel, bomb, compression))
            assert error.code() == grpc.StatusCode.UNIMPLEMENTED
            assert "is disabled" in error.details()
        assert memory().rss - before < 8 * MIB
        call = Stub(channel, WORKER_SERVICE).Info
        error = failure(lambda: call(worker_pb2.InfoRequest(), timeout=60, compression=compression))
        assert error.code() == grpc.StatusCode.UNIMPLEMENTED
    assert process.health() == 1


@pytest.mark.parametrize(
    "metadata",
    [
        [("x-large", "y" * 20_000)],
        [("x-large-bin", b"y" * 20_000)],
        [(f"x-{number}", "y" * 50) for number in range(500)],
        [("authorization", f"Bearer {number}") for number in range(1000)],
    ],
    ids=["one", "binary", "many", "the same"],
)
def test_metadata_beyond_16_kib_is_refused_and_costs_nothing(process: WorkerProcess, metadata: Any) -> None:
    client = RawClient(process.target)
    memory = psutil.Process(process.process.pid).memory_info
    before = memory().rss
    for _ in range(20):
        error = failure(lambda: client.worker_stub.Info(worker_pb2.InfoRequest(), timeout=60, metadata=metadata))
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert memory().rss - before < 8 * MIB
    assert client.put(sphere_cloud(3)).scene.scene_id
    client.close()
