"""One tenant does its worst with what all share: another goes on working, and everything comes back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace

import grpc
import pytest
from google.rpc import error_details_pb2

from lumigrad.protos.service import TRAINING_SERVICE, Stub
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.protos.wire import Frame
from lumigrad.v1 import scene_pb2, training_pb2
from support.raw_calls import RawClient, detail, failure, opencv_camera, scene_of, spec_of, sphere_cloud
from support.slow_render import wait_for
from support.tenant import tenant_client
from support.worker import WorkerProcess, worker

Code = grpc.StatusCode
MIB = 1 << 20
GREEDY, OTHER = "greedy-0123456789abcdef", "other-0123456789abcdef"


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    """Of 16 MiB for payloads each tenant may have 4."""
    tokens = tmp_path_factory.mktemp("tokens") / "tokens"
    tokens.write_text(f"a: {GREEDY}\nb: {OTHER}\n")
    options = ("--max-payload-mib", "2", "--transit-mib", "16", "--max-call-seconds", "30")
    with worker("--device", "cpu", "--tokens-file", str(tokens), *options) as started:
        yield started


@pytest.fixture
def people(process: WorkerProcess) -> Iterator[SimpleNamespace]:
    with process.channel() as one, process.channel() as another:
        a, b = tenant_client(one, GREEDY), tenant_client(another, OTHER)
        yield SimpleNamespace(a=a, b=b, train=Stub(a.channel, TRAINING_SERVICE).Train)


def works(client: RawClient, seed: int) -> None:
    """Store a scene, and render it: 7 KiB and 3 KiB of payload."""
    scene_id = client.put(sphere_cloud(200, seed=seed)).scene.scene_id
    assert client.render(spec_of(opencv_camera(16, 16), scene_id=scene_id)).arrays["color"].shape == (1, 16, 16, 3)


def stalled_put(go_on: threading.Event) -> Iterator[Frame]:
    """A header that declares nearly 2 MiB, of which nothing comes."""
    payload = PayloadWriter()
    scene = scene_of(sphere_cloud(74_000), payload)
    yield Frame(scene_pb2.PutRequest(scene=scene, payload_bytes=payload.length))
    go_on.wait(60)


def test_a_payload_that_is_declared_for_no_training_reserves_nothing(
    process: WorkerProcess, people: SimpleNamespace
) -> None:
    start = training_pb2.TrainRequest(start={"training_id": "x"})
    step = training_pb2.TrainRequest(step={"number": 0, "batch": 1}, payload_bytes=2 * MIB)
    gradients = training_pb2.TrainRequest(gradients={"number": 0}, payload_bytes=2 * MIB)
    for requests in [(start, step), (start, gradients), (step,), (gradients,)] * 4:
        error = failure(lambda requests=requests: list(people.train(iter(map(Frame, requests)), timeout=20)))
        assert error.code() in (Code.FAILED_PRECONDITION, Code.INVALID_ARGUMENT)
    works(people.b, 1)
    wait_for(process, "lumigrad_transit_bytes", 0)


def test_payloads_that_do_not_come_hold_the_share_of_their_tenant_only(
    process: WorkerProcess, people: SimpleNamespace
) -> None:
    go_on = threading.Event()
    nbytes = next(stalled_put(go_on)).message.payload_bytes
    held = [people.a.scene_stub.Put.future(stalled_put(go_on), timeout=30) for _ in range(2)]
    wait_for(process, "lumigrad_transit_bytes", 2 * nbytes)
    error = failure(lambda: people.a.put(sphere_cloud(10_000)))
    assert error.code() == Code.RESOURCE_EXHAUSTED
    told = f"you have {2 * nbytes} of {4 * MIB} bytes of payloads in progress (--tenant-transit-mib)"
    assert error.details().startswith(told)
    assert detail(error, error_details_pb2.RetryInfo).retry_delay.ToTimedelta().total_seconds() > 0
    works(people.b, 2)
    for call in held:
        call.cancel()
    go_on.set()
    wait_for(process, "lumigrad_transit_bytes", 0)
    works(people.a, 3)
