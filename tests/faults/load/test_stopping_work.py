"""Work that nobody waits for ends within 50 ms, even in the middle of a launch, and gives its memory back.

Seconds are the worker's processor time per processor, which other work on the machine does not affect.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from lumigrad.protos.streams import frames_of
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.v1 import distance_pb2, render_pb2
from support.calls.distance_calls import DistanceClient, cuboid, world_of
from support.calls.raw_calls import RawClient, failure
from support.workers.slow_render import SlowRender, wait_for, wait_for_work, wait_until, worked_seconds
from support.workers.worker import WorkerProcess

SECONDS = 0.05
OVERDUE_SECONDS = 0.5
TRIES = 6
# The codes in the worker's log. The deadline passes there later than for the caller, who then cancels the call.
CODES = {"cancelled": ("CANCELLED",), "overdue": ("DEADLINE_EXCEEDED", "CANCELLED")}
# Starts a call of a number of parts, with a deadline and a request id.
Start = Callable[[int, float, str], Any]


@pytest.fixture(scope="module")
def calls_of(process: WorkerProcess, client: RawClient) -> Callable[[str], tuple[Start, float]]:
    """A function that starts calls of a kind, and the time of one part; forward states of a kind are made once."""

    @functools.cache
    def of_kind(kind: str) -> tuple[Start, float]:
        start = KINDS[kind][0](client)
        return start, seconds_of_a_part(process, start)

    return of_kind


def renders(client: RawClient, kind: str) -> Start:
    slow = SlowRender(client, kind, apart=True)

    def start(views: int, timeout: float, request_id: str, size: int = 256) -> Any:
        return client.render_stub.Render(iter([slow.request(views, size)]), timeout=timeout, metadata=named(request_id))

    return start


def backwards(client: RawClient, kind: str) -> Start:
    slow = SlowRender(client, kind, apart=True)
    contexts: dict[tuple[int, int], str] = {}

    def start(views: int, timeout: float, request_id: str, size: int = 256) -> Any:
        key = views, size
        if key not in contexts:
            contexts[key] = client.render(slow.request(views, size).message.spec, retain=True).header.context_id
        payload = PayloadWriter()
        request = render_pb2.BackwardSpec(context_id=contexts[key])
        gradient = np.ones((views, size, size), np.float32)
        request.output_gradients.add(name="alpha", tensor=payload.add(gradient))
        frames = frames_of(render_pb2.BackwardRequest(spec=request), payload)
        return client.render_stub.Backward(frames, timeout=timeout, metadata=named(request_id))

    return start


def queries(client: RawClient) -> Start:
    distances = DistanceClient(client)
    boxes = np.random.default_rng(1).uniform(-1, 1, (1000, 3))
    world = world_of(*(cuboid(0.1, 0.1, 0.1, pose={"values": (*place, 1, 0, 0, 0)}) for place in boxes.tolist()))
    world_id = distances.put(world).scene.scene_id
    # One launch takes four trajectories of this size.
    rows = np.random.default_rng(2).uniform(-1, 1, (1, 64, 16, 4)).astype(np.float32)

    def start(launches: int, timeout: float, request_id: str) -> Any:
        payload = PayloadWriter()
        spec = distances.spec(world_id, np.repeat(rows, 4 * launches, axis=0), payload, max_distance=3.0)
        frames = frames_of(distance_pb2.QueryRequest(spec=spec), payload)
        return distances.stub.Query(frames, timeout=timeout, metadata=named(request_id))

    return start


def assert_soon(tries: Iterator[float], seconds: float, what: str) -> None:
    """Fails unless one of six tries takes less than `seconds`, and another less than five times that.

    There are no further tries once two succeed.
    """
    took: list[float] = []
    for each in itertools.islice(tries, TRIES):
        took.append(each)
        if min(took) < seconds and sum(one < 5 * seconds for one in took) >= 2:
            break
    print(f"{what}: stopped after {statistics.median(took) * 1e3:.0f} ms")
    assert min(took) < seconds
    assert sum(one < 5 * seconds for one in took) >= 2


def named(request_id: str) -> tuple[tuple[str, str], ...]:
    return (("x-request-id", request_id),)


# How to start a call of each kind, and the number of parts that takes long enough.
KINDS: dict[str, tuple[Callable[[RawClient], Start], int]] = {
    "spheres": (lambda client: renders(client, "spheres"), 60),
    "gaussians": (lambda client: renders(client, "gaussians"), 60),
    "gradients of spheres": (lambda client: backwards(client, "spheres"), 12),
    "gradients of Gaussians": (lambda client: backwards(client, "gaussians"), 60),
    "distances": (queries, 60),
}


# Seconds that one large view of each kind takes.
LARGE = {"spheres": 10.0, "gaussians": 10.0, "gradients of spheres": 3.0, "gradients of Gaussians": 1.5}


def seconds_of_a_part(process: WorkerProcess, start: Start) -> float:
    """The time of one part; few parts are made, or the worker would learn which calls cannot be done in time."""
    # The first call also grows the memory that the second uses.
    for number in range(2):
        before = worked_seconds(process)
        list(start(2, 60, f"part-{number}"))
    # A process's clock ticks every 10 ms.
    return max(worked_seconds(process) - before, 0.01) / 2


def logged(process: WorkerProcess, request_id: str, *codes: str) -> tuple[float, str]:
    """The worker's time when the end of the call is logged, after the device's thread has dropped it, and its code."""
    line = re.compile(rf"request_id={request_id} method=\S+ code=(\S+)")
    until = time.monotonic() + 60
    while (found := line.search(process.log)) is None:
        assert time.monotonic() < until, process.log[-2000:]
        time.sleep(0.001)
    assert found[1] in codes
    return worked_seconds(process), found[1]


def seconds_to_stop(process: WorkerProcess, call: Any, how: str, request_id: str) -> float:
    """The time from the end of a running call until the worker is done with it and has given its memory back.

    Infinite if a busy machine has cancelled the call too late.
    """
    if how == "cancelled":
        before = worked_seconds(process)
        wait_until(lambda: worked_seconds(process) > before + 0.05, "work of the device")
        began = worked_seconds(process)
        call.cancel()
    else:
        # The call may be over before it is seen at work on a busy machine.
        assert failure(lambda: list(call)).code() == grpc.StatusCode.DEADLINE_EXCEEDED
        began = worked_seconds(process)
    ended, code = logged(process, request_id, *CODES[how], *(["OK"] if how == "cancelled" else []))
    wait_for(process, "lumigrad_calls_in_progress", 0)
    wait_for(process, "lumigrad_transit_bytes", 0)
    return ended - began if code != "OK" else math.inf


# The kernels learn of both ends in the same way, so the other end is tried with one kind.
ENDED = [*((kind, "cancelled") for kind in KINDS), ("gaussians", "overdue")]


@pytest.mark.parametrize(("kind", "how"), ENDED)
def test_work_stops_between_launches(
    process: WorkerProcess, calls_of: Callable[[str], tuple[Start, float]], kind: str, how: str
) -> None:
    (start, part), parts = calls_of(kind), KINDS[kind][1]

    def tries() -> Iterator[float]:
        for number in itertools.count():
            request_id = f"{kind.replace(' ', '-')}-{how}-{number}"
            call = start(parts, OVERDUE_SECONDS if how == "overdue" else 60, request_id)
            yield seconds_to_stop(process, call, how, request_id)

    assert_soon(tries(), SECONDS + part, f"{kind}, {how}, where a launch takes {part * 1e3:.0f} ms")


@pytest.mark.parametrize(("kind", "how"), [each for each in ENDED if each[0] in LARGE])
def test_one_large_view_stops_between_tiles(
    process: WorkerProcess, calls_of: Callable[[str], tuple[Any, float]], kind: str, how: str
) -> None:
    start, small = calls_of(kind)
    # A view of 256 pixels per side takes `small`; this one takes seconds.
    size = int(256 * max(4.0, (LARGE[kind] / small) ** 0.5))
    start(1, 60, "first", size).cancel()

    def tries() -> Iterator[float]:
        for number in itertools.count():
            request_id = f"large-{kind.replace(' ', '-')}-{how}-{number}"
            call = start(1, OVERDUE_SECONDS if how == "overdue" else 60, request_id, size)
            yield seconds_to_stop(process, call, how, request_id)

    assert_soon(tries(), SECONDS, f"{kind}, {how}, {size} pixels a side")


@pytest.mark.parametrize("how", CODES)
def test_work_in_the_queue_ends_while_the_device_is_busy(process: WorkerProcess, client: RawClient, how: str) -> None:
    # The call shares the device with the running one, and must not finish within its time.
    parts, seconds = 60, {"cancelled": 60, "overdue": 1.0}[how]
    wait = backwards(client, "gaussians")
    wait(parts, 60, "first").cancel()
    wait_for(process, "lumigrad_calls_in_progress", 0)
    wait_for(process, "lumigrad_transit_bytes", 0)
    running = renders(client, "spheres")(200, 120, f"running-{how}")
    wait_for_work(process)
    held = process.metric("lumigrad_transit_bytes")
    took = []
    for number in range(3):
        waiting = wait(parts, seconds, f"queued-{how}-{number}")
        if how == "cancelled":
            wait_for(process, "lumigrad_queue_depth", 1)
            began = worked_seconds(process)
            waiting.cancel()
        else:
            assert failure(lambda waiting=waiting: list(waiting)).code() == grpc.StatusCode.DEADLINE_EXCEEDED
            began = worked_seconds(process)
        took.append(logged(process, f"queued-{how}-{number}", *CODES[how])[0] - began)
        wait_for(process, "lumigrad_queue_depth", 0)
        wait_for(process, "lumigrad_transit_bytes", held)
        assert running.is_active()
    print(f"in the queue, {how}: ended after {statistics.median(took) * 1e3:.0f} ms")
    assert min(took) < SECONDS
    running.cancel()
    wait_for(process, "lumigrad_transit_bytes", 0)
