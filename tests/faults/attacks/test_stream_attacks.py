"""Open, silent, slow or reset streams of one tenant leave another tenant's renders as they were."""

from __future__ import annotations

import itertools
import socket
import statistics
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from lumigrad.client import Camera, Client, Spheres
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.v1 import scene_pb2, training_pb2
from support.calls.gaussian_calls import camera_of, gaussian_cloud
from support.calls.raw_calls import RawClient, opencv_camera, scene_of, spec_of, sphere_cloud
from support.calls.raw_http2 import PREFACE, SETTINGS, frame, reset_rapidly
from support.calls.valid_requests import METHODS
from support.workers.slow_render import wait_until
from support.workers.tenant import tenant_client, tenant_fixture
from support.workers.worker import WorkerProcess, worker_fixture

Code = grpc.StatusCode
TOKENS = {"alice": "0123456789abcdef", "mallory": "fedcba9876543210"}
MALLORY = [("authorization", f"Bearer {TOKENS['mallory']}")]
STALL_SECONDS = 3
MAX_TRAININGS = 8
TRAIN = METHODS["TrainingService/Train"].path
PUT = METHODS["SceneService/Put"].path
RESETS = 60_000
SEEDS = itertools.count(100)
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
process = worker_fixture(
    "--reflection", "--stall-seconds", str(STALL_SECONDS), "--max-trainings", str(MAX_TRAININGS), tokens=TOKENS
)
mallory = tenant_fixture(TOKENS["mallory"])


@pytest.fixture(scope="module")
def alice(process: WorkerProcess) -> Iterator[RawClient]:
    with process.channel() as channel:
        client = tenant_client(channel, TOKENS["alice"])
        render(client)
        yield client


def render(client: RawClient) -> None:
    assert client.render(spec_of(opencv_camera(16, 16)), cloud=sphere_cloud(5), timeout=60).arrays


def assert_unharmed(process: WorkerProcess, client: RawClient, renders: int = 5) -> None:
    """Fails if the worker spends more than a second of processor time before it has rendered."""
    for _ in range(renders):
        before = process.processor_seconds()
        render(client)
        assert process.processor_seconds() - before < 1


def serves(client: RawClient) -> bool:
    """Whether a render succeeds; gRPC cancels calls while a worker is behind."""
    try:
        render(client)
    except grpc.RpcError as error:
        if error.code() is not Code.CANCELLED:
            raise
        return False
    return True


class Stream:
    """A call of mallory's that sends some messages, and then nothing, or one message repeatedly."""

    def __init__(self, channel: grpc.Channel, path: str, *messages: bytes, drip: bytes | None = None) -> None:
        self._more = threading.Event()
        self.has_ended = threading.Event()
        self._messages = list(messages)
        self._drip = drip
        self.call = channel.stream_stream(path)(self._requests(), metadata=MALLORY, timeout=240)
        self.replies: list[bytes] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with suppress(grpc.RpcError):
            for reply in self.call:
                self.replies.append(reply)
        self.has_ended.set()

    def _requests(self) -> Iterator[bytes]:
        yield from self._messages
        while not self._more.wait(None if self._drip is None else STALL_SECONDS / 10):
            assert self._drip is not None
            yield self._drip

    def close(self) -> None:
        self.call.cancel()
        self._more.set()


@contextmanager
def streams(target: str, path: str, count: int, *messages: bytes, drip: bytes | None = None) -> Iterator[list[Stream]]:
    with ExitStack() as stack:
        # Two separate connections, since one may not have that many calls.
        own = [("grpc.use_local_subchannel_pool", 1)]
        channels = [stack.enter_context(grpc.insecure_channel(target, own)) for _ in range(2)]
        made = [Stream(channels[number % 2], path, *messages, drip=drip) for number in range(count)]
        for stream in made:
            stack.callback(stream.close)
        yield made


def silence(seconds: float) -> Iterator[bytes]:
    """Requests that never come."""
    time.sleep(seconds)
    yield from ()


def start_of(client: RawClient) -> bytes:
    """The message that begins a training of a new scene."""
    cloud = {name: array for name, array in gaussian_cloud(20, seed=next(SEEDS)).items() if name != "covariances"}
    stored = client.put(cloud).scene
    start = training_pb2.TrainingStart(
        scene={"scene_id": stored.scene_id, "version": stored.version},
        spec={"gaussians": {"near": 0.02}, "optimizer": {"rates": {"means": {"initial": 1e-3}}}, "loss": {"l1": 1}},
        views=[{"camera": camera_of(width=16, height=16)}],
    )
    return training_pb2.TrainRequest(start=start).SerializeToString()


@pytest.mark.parametrize("path", [REFLECTION, TRAIN, PUT, METHODS["RenderService/Render"].path])
def test_silent_streams_leave_renders_alone(process: WorkerProcess, alice: RawClient, path: str) -> None:
    with streams(process.target, path, 120) as silent:
        wait_until(lambda: any(stream.has_ended.is_set() for stream in silent))
        assert_unharmed(process, alice)
        assert process.health() == 1
        refused = [stream.call for stream in silent if stream.has_ended.is_set()]
        # Some streams have been silent for too long by then on a slow machine.
        assert Code.RESOURCE_EXHAUSTED in {call.code() for call in refused} <= {Code.RESOURCE_EXHAUSTED, Code.CANCELLED}


def test_reflection_asks_for_a_token_and_ends_streams_that_stop(process: WorkerProcess) -> None:
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    with process.channel() as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        with pytest.raises(grpc.RpcError) as error:
            next(stub.ServerReflectionInfo(iter([request]), timeout=60))
        assert error.value.code() == Code.UNAUTHENTICATED
        # The token is missed even before the call has sent anything.
        call = channel.stream_stream(REFLECTION)(silence(10 * STALL_SECONDS), timeout=20 * STALL_SECONDS)
        assert call.code() == Code.UNAUTHENTICATED
        services = next(stub.ServerReflectionInfo(iter([request]), timeout=60, metadata=MALLORY))
        assert services.list_services_response.service
    with streams(process.target, REFLECTION, 1, request.SerializeToString()) as (stream,):
        assert stream.has_ended.wait(50 * STALL_SECONDS)
        assert stream.call.code() == Code.CANCELLED


def test_a_connection_has_as_many_streams_as_there_are_slots(process: WorkerProcess) -> None:
    header = struct.Struct(">BHBBI")
    settings: dict[int, int] = {}
    with socket.create_connection(("127.0.0.1", process.port), timeout=60) as connection:
        # The client sends its preface and an empty settings frame; the server's settings come first.
        connection.sendall(PREFACE + frame(SETTINGS, 0, 0))
        with connection.makefile("rb") as stream:
            high, low, kind, _, _ = header.unpack(stream.read(header.size))
            assert kind == SETTINGS
            settings.update(struct.iter_unpack(">HI", stream.read(high << 16 | low)))
    # The limit covers calls that wait or run, trainings, and 64 streams of frames; section 6.5.2 of RFC 9113 has the
    # number of the setting.
    assert settings[3] == max(128, 64 + 32 + MAX_TRAININGS + 64)


def test_idle_trainings_are_counted_apart_and_capped_for_a_tenant(
    process: WorkerProcess, alice: RawClient, mallory: RawClient
) -> None:
    starts = [start_of(mallory) for _ in range(MAX_TRAININGS // 2)]
    with ExitStack() as stack:
        idle = [
            one
            for start in starts
            for one in stack.enter_context(streams(process.target, TRAIN, 84 // len(starts), start))
        ]
        wait_until(lambda: sum(stream.has_ended.is_set() for stream in idle) >= 84 - MAX_TRAININGS // 2)
        assert process.metric("lumigrad_account_taken", resource="open_trainings") <= MAX_TRAININGS // 2
        assert_unharmed(process, alice)
        ended = [stream.call for stream in idle if stream.has_ended.is_set()]
        # A scene has one training at a time.
        assert {call.code() for call in ended} <= {Code.RESOURCE_EXHAUSTED, Code.FAILED_PRECONDITION}
        refused = [call for call in ended if call.code() == Code.RESOURCE_EXHAUSTED]
        assert f"of {MAX_TRAININGS // 2} open trainings (--max-trainings)" in refused[0].details()
        # Another tenant can still begin a training.
        with process.channel() as channel:
            frames = channel.stream_stream(TRAIN)(
                iter([start_of(alice)]), metadata=[("authorization", f"Bearer {TOKENS['alice']}")], timeout=150
            )
            assert training_pb2.TrainReply.FromString(next(iter(frames))).WhichOneof("kind") == "started"
            frames.cancel()
    wait_until(lambda: process.metric("lumigrad_account_taken", resource="open_trainings") == 0)


class Upload:
    """A Put whose payload comes in delayed pieces."""

    def __init__(self, channel: grpc.Channel, nbytes: int, piece: int, every_seconds: float) -> None:
        payload = PayloadWriter()
        self._header = scene_pb2.PutRequest(scene=scene_of(sphere_cloud(nbytes // 28), payload))
        self._header.payload_bytes = payload.length
        self._data = b"".join(payload.buffers)
        self._piece, self._every_seconds = piece, every_seconds
        self._has_ended = threading.Event()
        self.call = channel.stream_unary(PUT).future(self._requests(), metadata=MALLORY, timeout=240)
        self.call.add_callback(self._has_ended.set)

    def _requests(self) -> Iterator[bytes]:
        yield self._header.SerializeToString()
        for start in range(0, len(self._data), self._piece):
            if self._has_ended.wait(self._every_seconds):
                return
            yield scene_pb2.PutRequest(data=self._data[start : start + self._piece]).SerializeToString()


def test_an_upload_that_drips_is_ended_and_a_slow_one_is_not(process: WorkerProcess) -> None:
    with process.channel() as channel:
        dripping = Upload(channel, 1 << 20, 1, STALL_SECONDS / 10)
        # 100 kB/s for longer than the limit, unless a busy machine stands still for too long.
        for _ in range(5):
            slow = Upload(channel, 5 * STALL_SECONDS // 3 * 100_000, 20_000, 0.2)
            if slow.call.code() == Code.OK:
                break
        assert dripping.call.code() == Code.CANCELLED
        # The log line is written after the client has the status.
        wait_until(lambda: "less than 64 KiB of a payload" in process.log)
        assert slow.call.code() == Code.OK


@pytest.mark.parametrize("data", [None, b"\0"], ids=["stops", "drips"])
def test_a_training_whose_payload_does_not_come_is_ended(
    process: WorkerProcess, mallory: RawClient, data: bytes | None
) -> None:
    step = training_pb2.TrainRequest(step={"own_loss": True, "outputs": ["color"], "batch": 1})
    gradients = training_pb2.TrainRequest(gradients={"number": 0}, payload_bytes=16 * 16 * 3 * 4)
    messages = [start_of(mallory), step.SerializeToString(), gradients.SerializeToString()]
    drip = None if data is None else training_pb2.TrainRequest(data=data).SerializeToString()
    with streams(process.target, TRAIN, 1, *messages, drip=drip) as (stream,):
        assert stream.has_ended.wait(50 * STALL_SECONDS)
        kinds = [training_pb2.TrainReply.FromString(reply).WhichOneof("kind") for reply in stream.replies]
        assert kinds[:2] == ["started", "images"]
        assert stream.call.code() == Code.CANCELLED
    wait_until(lambda: process.metric("lumigrad_transit_bytes") == 0)


def test_a_training_that_asks_for_nothing_is_left_alone(process: WorkerProcess, mallory: RawClient) -> None:
    with streams(process.target, TRAIN, 1, start_of(mallory)) as (stream,):
        assert not stream.has_ended.wait(2 * STALL_SECONDS)


def test_rapid_resets_fail_nobodys_renders(process: WorkerProcess, alice: RawClient) -> None:
    cloud, camera = Spheres([[0, 0, 2]], [[1, 0, 0]], [0.5]), Camera.look_at((0, 0, 0), (0, 0, 1), width=16, height=16)
    has_ended = threading.Event()
    attacker = threading.Thread(target=reset_rapidly, args=(process.port, RESETS, has_ended))
    attacker.start()
    try:
        # A worker that gets little time on a busy machine falls behind; gRPC then cancels calls, which clients repeat.
        with Client(process.target, token=TOKENS["alice"], timeout_s=60) as client:
            taken = []
            while attacker.is_alive() or not taken:
                before = process.processor_seconds()
                assert client.render(cloud, camera).color.any()
                taken.append(process.processor_seconds() - before)
            # The worker works on while the client waits before it repeats a call.
            assert statistics.median(taken) < 1
    finally:
        has_ended.set()
        attacker.join()
    # The worker may still be behind when the attack is over.
    wait_until(lambda: serves(alice), "a render without help of the client")
    assert process.health() == 1
