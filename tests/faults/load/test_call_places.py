"""Places of calls: however many uploads stall, another tenant's calls get their places."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import grpc
import pytest

from lumigrad.protos.service import WORKER_SERVICE, Stub
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.protos.wire import Frame
from lumigrad.v1 import scene_pb2, worker_pb2
from support.calls.raw_calls import RawClient, scene_of, sphere_cloud
from support.workers.slow_render import wait_for, wait_until
from support.workers.tenant import tenant_client
from support.workers.worker import WorkerProcess, worker

Code = grpc.StatusCode
TOKENS = {name: f"{name}-0123456789abcdef" for name in ("greedy", "partner", "other")}
QUEUE = 16
# QUEUE calls may wait, and 32 more may be receiving or sending.
PLACES = QUEUE + 32


@pytest.fixture
def process() -> Iterator[WorkerProcess]:
    # Uploads that stand still are not ended, however long the test takes.
    options = ("--queue-size", str(QUEUE), "--stall-seconds", "600")
    with worker("--device", "cpu", *options, tokens=TOKENS) as started:
        yield started


@contextmanager
def people(process: WorkerProcess) -> Iterator[dict[str, RawClient]]:
    with ExitStack() as stack:
        own = [("grpc.use_local_subchannel_pool", 1)]
        yield {
            name: tenant_client(stack.enter_context(grpc.insecure_channel(process.target, own)), token)
            for name, token in TOKENS.items()
        }


class Idle:
    """Uploads of one tenant that send only their header."""

    def __init__(self, client: RawClient, count: int) -> None:
        self._end = threading.Event()
        payload = PayloadWriter()
        self._header = scene_pb2.PutRequest(scene=scene_of(sphere_cloud(1000), payload), payload_bytes=payload.length)
        self.calls = [client.scene_stub.Put.future(self._frames(), timeout=240) for _ in range(count)]

    def _frames(self) -> Iterator[Frame[Any]]:
        yield Frame(self._header)
        self._end.wait(240)

    @property
    def held(self) -> int:
        """The number of uploads that have not ended."""
        return sum(not call.done() for call in self.calls)

    def close(self) -> None:
        self._end.set()
        for call in self.calls:
            call.cancel()


def answered(client: RawClient, count: int) -> dict[Code, int]:
    """The number of short calls by status, made one after another while another call is in progress."""
    info, codes = Stub(client.channel, WORKER_SERVICE).Info, {}
    for _ in range(count):
        call = info.future(worker_pb2.InfoRequest(), timeout=60)
        codes[call.code()] = codes.get(call.code(), 0) + 1
    return codes


def test_a_tenant_whose_uploads_stand_still_leaves_half_of_the_places(process: WorkerProcess) -> None:
    with people(process) as clients:
        held = Idle(clients["greedy"], PLACES)
        wait_for(process, "lumigrad_calls_in_progress", PLACES // 2)
        wait_until(lambda: held.held <= PLACES // 2, "refused uploads")
        refused = next(call for call in held.calls if call.done())
        assert refused.code() == Code.RESOURCE_EXHAUSTED
        assert f"of {PLACES // 2} places for calls in progress (--queue-size)" in refused.details()
        own = Idle(clients["other"], PLACES // 2 - 8)
        wait_for(process, "lumigrad_calls_in_progress", PLACES - 8)
        assert answered(clients["other"], 20) == {Code.OK: 20}
        assert held.held == PLACES // 2
        assert process.health() == 1
        held.close()
        own.close()
        wait_for(process, "lumigrad_calls_in_progress", 0)


def test_uploads_that_stand_still_give_their_places_to_tenants_with_fewer(process: WorkerProcess) -> None:
    with people(process) as clients:
        held = [Idle(clients[name], PLACES) for name in ("greedy", "partner")]
        # An eighth of the places is kept for tenants without any.
        wait_for(process, "lumigrad_calls_in_progress", PLACES - PLACES // 8)
        own = Idle(clients["other"], 1)
        wait_for(process, "lumigrad_calls_in_progress", PLACES - PLACES // 8 + 1)
        # The uploads must stall for more than a second before one gives way.
        wait_until(lambda: answered(clients["other"], 1) == {Code.OK: 1}, "a place")
        assert answered(clients["other"], 20) == {Code.OK: 20}
        assert own.held == 1
        assert process.health() == 1
        process.wait_for_log("and others needed its place")
        assert sum(each.held for each in held) >= PLACES // 2
        for each in (*held, own):
            each.close()
        wait_for(process, "lumigrad_calls_in_progress", 0)
