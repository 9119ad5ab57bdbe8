"""The socket that opens shared-memory lanes: who may connect, who is refused, and that no resource leaks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace

import grpc
import psutil
import pytest

from lumigrad.protos.lanes import PACKET_BYTES, ToCaller, ToWorker, pack_hello
from support.calls.lane_calls import ALICE, MIB, SPEC, lane_worker, location, render, wait_for
from support.calls.raw_calls import failure, sphere_cloud
from support.calls.raw_lane import RawLane, connect, is_closed, offer_of
from support.workers.forks import ForkedProcess
from support.workers.worker import WorkerProcess


@pytest.fixture(scope="module")
def process() -> Iterator[WorkerProcess]:
    with lane_worker() as started:
        yield started


def test_a_token_lets_one_caller_in_once(process: WorkerProcess, people: SimpleNamespace) -> None:
    refused = process.metric("lumigrad_lane_fallbacks_total", reason="refused")
    with RawLane(people.alice) as lane:
        attempts = [lane.offer.token, bytes(16), os.urandom(16), lane.offer.nonce]
        for token in attempts:
            with connect(lane.offer) as link:
                link.send(pack_hello(token))
                assert is_closed(link)
        assert location(render(people.alice, lane, 1)) == "region"
    now = process.metric("lumigrad_lane_fallbacks_total", reason="refused")
    assert now == refused + len(attempts)


def test_who_does_not_see_the_memory_gets_no_lane(people: SimpleNamespace) -> None:
    offer = offer_of(people.alice)
    with connect(offer) as link:
        link.send(pack_hello(offer.token))
        link.send(bytes([ToWorker.READY]) + bytes(16))
        assert is_closed(link)


JUNK = [
    b"",
    b"\x01",
    b"GET / HTTP/1.1\r\n\r\n",
    bytes(PACKET_BYTES),
    bytes([99]) + bytes(16),
    bytes([ToWorker.READY]) + bytes(16),
    bytes([ToWorker.LEASE]) + bytes([255]) * 16,
    bytes([ToCaller.REGION]) + bytes(16),
    bytes(1 << 16),
]


@pytest.mark.parametrize("raw", JUNK, ids=range(len(JUNK)))
def test_junk_on_the_socket_and_inside_a_lane(people: SimpleNamespace, raw: bytes) -> None:
    with RawLane(people.alice) as other, connect(other.offer) as link:
        link.send(raw)
        assert is_closed(link)
        with RawLane(people.bob) as lane:
            lane.send(ToWorker.LEASE, 1, MIB)
            lane.link.send(raw)
            if raw[:1] != bytes([ToWorker.LEASE]):
                assert is_closed(lane.link)
        assert location(render(people.alice, other, 1)) == "region"


def test_descriptors_that_nobody_asked_for(process: WorkerProcess, people: SimpleNamespace) -> None:
    with RawLane(people.alice) as lane:
        before = psutil.Process(process.process.pid).num_fds()
        for lease in range(1, 200):
            socket.send_fds(lane.link, [bytes([ToWorker.RELEASE]) + lease.to_bytes(8, "little") + bytes(8)], [0, 1, 2])
        assert lane.lease(999, MIB)
        assert psutil.Process(process.process.pid).num_fds() <= before + 4


def test_a_caller_who_does_not_listen(people: SimpleNamespace) -> None:
    with RawLane(people.alice) as other, RawLane(people.bob) as lane:
        with pytest.raises(OSError):
            for _ in range(100_000):
                lane.send(ToWorker.LEASE, 1, 0)
        assert location(render(people.alice, other, 1)) == "region"


def test_silent_connections_are_few_and_soon_closed(people: SimpleNamespace) -> None:
    offer = offer_of(people.alice)
    with ExitStack() as stack:
        links = [stack.enter_context(connect(offer)) for _ in range(40)]
        began = time.monotonic()
        assert all(is_closed(link) for link in reversed(links))
        assert time.monotonic() - began < 60
    with RawLane(people.alice) as lane:
        assert lane.lease(1, MIB)


def test_there_are_only_so_many_lanes(process: WorkerProcess, people: SimpleNamespace) -> None:
    descriptors = psutil.Process(process.process.pid).num_fds()
    with ExitStack() as stack:
        lanes = [stack.enter_context(RawLane(people.alice)) for _ in range(32)]
        error = failure(lambda: offer_of(people.alice))
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert error.details() == "the maximum number of shared-memory lanes is open; try again later"
        stack.enter_context(RawLane(people.bob))
        lanes[0].close()
        wait_for(lambda: process.metric("lumigrad_lanes") == 32)
        stack.enter_context(RawLane(people.alice))
    wait_for(lambda: psutil.Process(process.process.pid).num_fds() <= descriptors + 2)


STRANGER = """
import os, socket, sys
os.setgid(65534)
os.setuid(65534)
link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
link.settimeout(60)
link.connect("\\0" + sys.argv[1])
try:
    link.send(bytes([1]) + bytes.fromhex(sys.argv[2]))
    sys.exit(bool(link.recv(99)))
except ConnectionError:
    pass
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_another_user_is_not_let_in_with_a_valid_token(process: WorkerProcess, people: SimpleNamespace) -> None:
    offer = offer_of(people.alice)
    refused = process.metric("lumigrad_lane_fallbacks_total", reason="refused")
    command = [sys.executable, "-c", STRANGER, offer.socket, offer.token.hex()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    wait_for(lambda: process.metric("lumigrad_lane_fallbacks_total", reason="refused") == refused + 1)
    with connect(offer) as link:
        link.send(pack_hello(offer.token))
        assert link.recv(PACKET_BYTES)[0] == ToCaller.REGION, "the token is still good for who asked for it"


HOLDING = """
import sys, time
import numpy as np
from lumigrad.client import Camera, Client, Spheres
camera = Camera.orbit((0, 0, 0), 4, 30, 20, width=640, height=480)
rng = np.random.default_rng(0)
cloud = Spheres(rng.normal(size=(200_000, 3)), rng.uniform(size=(200_000, 3)), np.full(200_000, 0.005))
client = Client(sys.argv[1], token=sys.argv[2], lane="shared")
frames = [client.render(cloud, camera) for _ in range(3)]
print("holding", flush=True)
while True:
    client.render(cloud, camera).backward(np.ones((480, 640, 3)))
"""


def test_a_killed_caller_leaves_nothing(process: WorkerProcess, people: SimpleNamespace) -> None:
    server = psutil.Process(process.process.pid)
    descriptors = server.num_fds()
    child = ForkedProcess([process.target, ALICE], before=(HOLDING,))
    try:
        assert child.stdout.readline() == "holding\n"
        assert process.metric("lumigrad_lane_bytes") > 10 * MIB
        assert process.metric("lumigrad_lanes") == 1
    finally:
        child.kill()
        child.communicate(timeout=60)
    wait_for(lambda: process.metric("lumigrad_lane_bytes") == 0)
    wait_for(lambda: process.metric("lumigrad_calls_in_progress") == 0 and server.num_fds() <= descriptors + 4)
    wait_for(lambda: not any("lumigrad-lane" in place.path for place in server.memory_maps()))


def test_a_lane_that_breaks_down_under_load_takes_no_call_with_it(people: SimpleNamespace) -> None:
    expected = people.alice.render(SPEC, cloud=sphere_cloud(50)).arrays["color"]
    errors: list[Exception] = []

    def call() -> None:
        for _ in range(20):
            try:
                got = people.alice.render(SPEC, cloud=sphere_cloud(50)).arrays["color"]
                assert got.tobytes() == expected.tobytes()
            except Exception as error:
                errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    while thread.is_alive():
        with RawLane(people.bob) as lane:
            lane.lease(1, 4 * MIB)
            render(people.bob, lane, 2)
    assert not errors
