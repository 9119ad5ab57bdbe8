"""Renders that are answered without Python keep the promises of all calls, however they end."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from lumigrad.protos.lanes import ToCaller
from lumigrad.protos.service import RENDER_SERVICE, SINGLE_REPLY
from lumigrad.v1 import render_pb2, scene_pb2
from support.calls.gaussian_calls import gaussian_cloud, gaussian_spec
from support.calls.raw_calls import RawClient, failure, opencv_camera
from support.calls.raw_lane import RawLane
from support.workers.slow_render import SlowRender, wait_for, wait_for_work, wait_until
from support.workers.worker import WorkerProcess, worker, worker_fixture

Code = grpc.StatusCode
QUEUE = 16
PLACES = QUEUE + 32
TOKENS = {name: f"{name}-0123456789abcdef" for name in ("greedy", "partner", "other")}
METHOD = "RenderService.Render"


class Repeated:
    """Calls of a prepared kind, each answered by one message."""

    size = 32, 24
    retain = False

    def __init__(self, client: RawClient, token: str = "") -> None:
        self.client = client
        self._bearer = [("authorization", f"Bearer {token}")] if token else []
        channel, path = client.channel, f"/{RENDER_SERVICE}/Render"
        self._single, self._stream = channel.unary_unary(path), channel.stream_unary(path)
        self.scene_id = ""

    def prepare(self, scene_id: str) -> Repeated:
        self.scene_id = scene_id
        for view in range(3):
            self.ask(view)
        return self

    def request(self, view: int) -> bytes:
        spec = gaussian_spec(opencv_camera(*self.size, x=0.01 * view), scene_id=self.scene_id, outputs=["color"])
        return render_pb2.RenderRequest(spec=spec, retain=self.retain).SerializeToString()

    def start(self, view: int = 0, timeout: float = 60.0, **metadata: str) -> Any:
        return self._single.future(self.request(view), timeout=timeout, metadata=self._metadata(metadata))

    def ask(self, view: int = 0, **metadata: str) -> bytes:
        found: bytes = self.start(view, **metadata).result()
        return found

    def silent(self, end: threading.Event, count: int) -> list[Any]:
        """Calls that send nothing."""

        def requests() -> Iterator[bytes]:
            end.wait(240)
            yield from ()

        return [self._stream.future(requests(), timeout=240, metadata=self._metadata({})) for _ in range(count)]

    def _metadata(self, more: dict[str, str]) -> list[tuple[str, str]]:
        named = [(name.replace("_", "-"), value) for name, value in more.items()]
        return [SINGLE_REPLY, *self._bearer, *named]


class ByLane(Repeated):
    """Repeated calls whose images go by a lane."""

    size = 400, 300

    def __init__(self, client: RawClient, *, retain: bool = False) -> None:
        super().__init__(client)
        self.retain = retain
        self.lane = RawLane(client)
        self._leases = itertools.count(1)
        self.lease = 0

    def start(self, view: int = 0, timeout: float = 60.0, **metadata: str) -> Any:
        self.lease = next(self._leases)
        return super().start(view, timeout, **metadata, **dict(self.lane.metadata(self.lease)))

    def ask(self, view: int = 0, **metadata: str) -> bytes:
        reply = super().ask(view, **metadata)
        self.pixels(reply)
        self.lane.release(self.lease)
        self.forget(reply)
        return reply

    def forget(self, reply: bytes) -> None:
        """Releases the state of a reply, if it has one."""
        context_id = render_pb2.RenderReply.FromString(reply).context_id
        assert bool(context_id) == self.retain
        if context_id:
            self.client.render_stub.Release(render_pb2.ReleaseRequest(context_id=context_id), timeout=60)

    def region(self, reply: bytes) -> int:
        return int(render_pb2.RenderReply.FromString(reply).outputs[0].tensor.region.region)

    def pixels(self, reply: bytes) -> bytes:
        """The current content of the reply's region."""
        region = self.region(reply)
        while region not in self.lane.regions:
            self.lane.expect(ToCaller.REGION)
        found: bytes = self.lane.regions[region][: self.size[0] * self.size[1] * 12].tobytes()
        return found


process = worker_fixture("--queue-size", str(QUEUE))


@pytest.fixture(scope="module")
def repeated(process: WorkerProcess) -> Iterator[Repeated]:
    client = RawClient(process.target)
    yield Repeated(client).prepare(client.put(gaussian_cloud(80)).scene.scene_id)
    client.close()


@pytest.fixture(params=[False, True], ids=["by lane", "retained, by lane"])
def by_lane(process: WorkerProcess, repeated: Repeated, request: pytest.FixtureRequest) -> Iterator[ByLane]:
    made = ByLane(repeated.client, retain=request.param)
    yield made.prepare(repeated.scene_id)
    made.lane.close()
    wait_for(process, "lumigrad_lane_bytes", 0)
    wait_for(process, "lumigrad_contexts", 0)


@pytest.fixture
def busy(process: WorkerProcess, repeated: Repeated) -> Iterator[None]:
    """Keeps the device busy with a long call."""
    slow = SlowRender(repeated.client)
    slow.start()
    wait_for_work(process)
    yield
    slow.cancel()
    wait_for(process, "lumigrad_calls_in_progress", 0)
    wait_for(process, "lumigrad_transit_bytes", 0)


def begin_to_wait(process: WorkerProcess, start: Callable[[float], Any], seconds: float = 60.0) -> Any:
    """Start a call that waits for the device; on a busy machine, its time-out doubles until it gets a place."""
    call = start(seconds)
    wait_until(lambda: call.done() or process.metric("lumigrad_queue_depth") == 1, "a place in the queue")
    if not call.done():
        return call
    assert failure(call.result).code() == Code.DEADLINE_EXCEEDED
    return begin_to_wait(process, start, 2 * seconds)


def calls(process: WorkerProcess, code: str) -> float:
    return process.metric("lumigrad_calls_total", method=METHOD, code=code)


def test_a_reader_of_the_metrics_finds_each_as_soon_as_it_is_answered(
    process: WorkerProcess, repeated: Repeated
) -> None:
    kernels = {"engine": "gaussians", "op": "forward", "stage": "blend"}
    for number in range(5):
        before = calls(process, "OK"), process.metric("lumigrad_kernel_seconds_count", **kernels)
        sent = process.metric("lumigrad_payload_bytes_total", method=METHOD, direction="sent")
        repeated.ask(number, x_request_id=f"seen-{number}")
        assert calls(process, "OK") == before[0] + 1
        assert process.metric("lumigrad_kernel_seconds_count", **kernels) == before[1] + 1
        assert process.metric("lumigrad_payload_bytes_total", method=METHOD, direction="sent") == sent + 32 * 24 * 12
        process.wait_for_log(f"request_id=seen-{number}")
    line = next(line for line in process.log.splitlines() if "request_id=seen-4" in line)
    assert f"method={METHOD} code=OK" in line and "sent=9216" in line


def test_its_id_is_the_callers_or_one_of_its_own(repeated: Repeated) -> None:
    ids = []
    for given in ("mine.1:2", "not valid", ""):
        call = repeated.start(x_request_id=given)
        call.result()
        ids.append(dict(call.trailing_metadata())["x-request-id"])
    assert ids[0] == "mine.1:2"
    assert len(set(ids)) == 3 and all(len(each) == 16 for each in ids[1:])


def test_one_that_waits_for_the_device_is_cancelled(process: WorkerProcess, repeated: Repeated, busy: None) -> None:
    before = calls(process, "CANCELLED")
    call = begin_to_wait(process, lambda seconds: repeated.start(timeout=seconds, x_request_id="gone"))
    wait_for(process, "lumigrad_calls_in_progress", 2)
    wait_for(process, "lumigrad_calls_in_stage", 1, stage="queue")
    call.cancel()
    wait_for(process, "lumigrad_queue_depth", 0)
    wait_until(lambda: calls(process, "CANCELLED") == before + 1, "its record")
    process.wait_for_log("request_id=gone")


def test_one_that_waits_for_the_device_ends_at_its_deadline(
    process: WorkerProcess, repeated: Repeated, busy: None
) -> None:
    # The deadline passes later for the worker than for the caller, who then cancels the call.
    ended = lambda: calls(process, "DEADLINE_EXCEEDED") + calls(process, "CANCELLED")  # noqa: E731
    before = ended()
    call = begin_to_wait(process, lambda seconds: repeated.start(timeout=seconds), 1.0)
    assert failure(call.result).code() == Code.DEADLINE_EXCEEDED
    wait_until(lambda: ended() > before, "its record")
    wait_for(process, "lumigrad_queue_depth", 0)


@pytest.mark.parametrize("end", ["cancelled", "late", "released and cancelled", "without its lane"])
def test_the_memory_of_one_that_has_ended_serves_again(
    process: WorkerProcess, repeated: Repeated, by_lane: ByLane, end: str
) -> None:
    expected, lane = by_lane.ask(1), by_lane.lane
    pixels, region = by_lane.pixels(expected), by_lane.region(expected)
    taken = process.metric("lumigrad_lane_bytes")
    slow = SlowRender(repeated.client)
    slow.start()
    wait_for_work(process)
    leases = []

    def start(seconds: float) -> Any:
        # The regions of calls that came too late for the queue.
        for lease in leases:
            lane.release(lease)
        call = by_lane.start(2, timeout=seconds)
        leases[:] = [by_lane.lease]
        return call

    call = begin_to_wait(process, start, 1.0 if end == "late" else 60.0)
    if end == "without its lane":
        lane.close()
        wait_for(process, "lumigrad_lane_bytes", 0)
        slow.cancel()
        reply = call.result()
        assert by_lane.region(reply) == region
        by_lane.forget(reply)
        wait_for(process, "lumigrad_transit_bytes", 0)
        return
    lease = by_lane.lease
    if end == "released and cancelled":
        lane.release(lease)
    if end == "late":
        assert failure(call.result).code() == Code.DEADLINE_EXCEEDED
    call.cancel()
    wait_for(process, "lumigrad_queue_depth", 0)
    lane.release(lease)
    slow.cancel()
    wait_for(process, "lumigrad_calls_in_progress", 0)
    again = by_lane.ask(1)
    assert by_lane.region(again) == region and by_lane.pixels(again) == pixels
    assert process.metric("lumigrad_lane_bytes") == taken


def test_a_full_queue_refuses_it(process: WorkerProcess, repeated: Repeated, busy: None) -> None:
    waiting = [repeated.start(view) for view in range(QUEUE)]
    wait_for(process, "lumigrad_queue_depth", QUEUE)
    error = failure(repeated.ask)
    assert error.code() == Code.RESOURCE_EXHAUSTED and "places of the queue" in error.details()
    for call in waiting:
        call.cancel()
    wait_for(process, "lumigrad_queue_depth", 0)


def test_calls_at_the_same_time_get_their_own_replies(repeated: Repeated) -> None:
    expected = [_pixels(repeated.ask(view)) for view in range(40)]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda view: _pixels(repeated.ask(view)), range(40))) == expected


def _pixels(reply: bytes) -> bytes:
    data: bytes = render_pb2.RenderReply.FromString(reply).data
    return data


def test_it_is_of_the_scene_as_it_is(process: WorkerProcess, repeated: Repeated) -> None:
    client = repeated.client
    cloud = gaussian_cloud(60, seed=3)
    scene = client.put(cloud).scene
    own = Repeated(client).prepare(scene.scene_id)
    before = _pixels(own.ask())
    client.update(scene.scene_id, scene.version, {"opacities": 0.5 * cloud["opacities"]})
    after = _pixels(own.ask())
    assert after != before and after == _pixels(own.ask())
    client.scene_stub.Delete(scene_pb2.DeleteRequest(scene_id=scene.scene_id), timeout=60)
    assert failure(own.ask).code() == Code.NOT_FOUND


def test_an_evicted_scene_is_not_found() -> None:
    with worker("--device", "cpu", "--max-scenes", "2") as process, RawClient(process.target) as client:
        first, *others = (client.put(gaussian_cloud(50, seed=seed)).scene.scene_id for seed in (1, 2))
        repeated = Repeated(client).prepare(first)
        Repeated(client).prepare(others[0])
        # Uses within 10 ms count as one.
        time.sleep(0.05)
        # The first scene was used last.
        repeated.ask()
        client.put(gaussian_cloud(50, seed=3))
        repeated.ask()
        assert failure(lambda: Repeated(client).prepare(others[0])).code() == Code.NOT_FOUND
        for seed in (4, 5):
            client.put(gaussian_cloud(50, seed=seed))
        assert failure(repeated.ask).code() == Code.NOT_FOUND


def test_sigterm_lets_those_that_wait_end_and_takes_no_more() -> None:
    with worker("--device", "cpu", "--drain-seconds", "60") as process, RawClient(process.target) as client:
        repeated = Repeated(client).prepare(client.put(gaussian_cloud(80)).scene.scene_id)
        expected = [_pixels(repeated.ask(view)) for view in range(4)]
        slow = SlowRender(client)
        slow.start()
        wait_for_work(process)
        waiting = [repeated.start(view) for view in range(4)]
        wait_for(process, "lumigrad_queue_depth", 4)
        process.signal(signal.SIGTERM)
        process.wait_for_log("draining")
        # The worker has looked again whether it takes calls.
        wait_until(lambda: _is_refused(repeated), "a worker that takes no calls")
        slow.cancel()
        assert [_pixels(call.result()) for call in waiting] == expected
        assert process.wait() == 0


@pytest.mark.parametrize("retain", [False, True])
def test_sigterm_lets_those_with_a_lane_end(retain: bool) -> None:
    with worker("--device", "cpu", "--drain-seconds", "60") as process, RawClient(process.target) as client:
        by_lane = ByLane(client, retain=retain).prepare(client.put(gaussian_cloud(80)).scene.scene_id)
        expected = [by_lane.pixels(by_lane.ask(view)) for view in range(3)]
        slow = SlowRender(client)
        slow.start()
        wait_for_work(process)
        waiting = [by_lane.start(view) for view in range(3)]
        wait_for(process, "lumigrad_queue_depth", 3)
        process.signal(signal.SIGTERM)
        process.wait_for_log("draining")
        slow.cancel()
        replies = [call.result() for call in waiting]
        assert process.wait() == 0
        assert [by_lane.pixels(reply) for reply in replies] == expected
        assert len({by_lane.region(reply) for reply in replies}) == 3
        by_lane.lane.close()


def _is_refused(repeated: Repeated) -> bool:
    try:
        call = repeated.start(timeout=1.0)
        call.result()
    except grpc.RpcError as error:
        return bool(error.code() == Code.UNAVAILABLE)
    return False


def test_a_worker_that_is_killed_leaves_its_callers_no_reply() -> None:
    with worker("--device", "cpu", is_balanced=False) as process, RawClient(process.target) as client:
        repeated = Repeated(client).prepare(client.put(gaussian_cloud(80)).scene.scene_id)
        slow = SlowRender(client)
        slow.start()
        wait_for_work(process)
        waiting = [repeated.start(view) for view in range(4)]
        wait_for(process, "lumigrad_queue_depth", 4)
        process.process.kill()
        assert {failure(call.result).code() for call in waiting} == {Code.UNAVAILABLE}


@pytest.fixture
def people(tmp_path: Path) -> Iterator[tuple[WorkerProcess, dict[str, Repeated]]]:
    """A worker that ends calls without a first message after a second once a file exists, and its tenants' calls."""
    before = (
        "import os, threading, time",
        "from lumigrad.server.core import progress",
        "def shorten():",
        f"    while not os.path.exists({str(tmp_path / 'impatient')!r}): time.sleep(0.02)",
        "    progress._SILENT_SECONDS = 1.0",
        "progress._SILENT_SECONDS = 600.0",
        "threading.Thread(target=shorten, daemon=True).start()",
    )
    options = ("--device", "cpu", "--queue-size", str(QUEUE), "--stall-seconds", "600")
    with worker(*options, tokens=TOKENS, before=before) as process, ExitStack() as stack:
        own = [("grpc.use_local_subchannel_pool", 1)]
        channels = {name: stack.enter_context(grpc.insecure_channel(process.target, own)) for name in TOKENS}
        yield (
            process,
            {name: Repeated(RawClient("", channel=channel), TOKENS[name]) for name, channel in channels.items()},
        )


def test_calls_that_send_nothing_leave_a_second_tenant_its_share(
    people: tuple[WorkerProcess, dict[str, Repeated]], tmp_path: Path
) -> None:
    process, by_name = people
    end = threading.Event()
    held = by_name["greedy"].silent(end, PLACES)
    wait_for(process, "lumigrad_calls_in_progress", PLACES // 2)
    wait_until(lambda: sum(call.done() for call in held) >= PLACES - PLACES // 2, "refused calls")
    refused = next(call for call in held if call.done())
    assert refused.code() == Code.RESOURCE_EXHAUSTED
    assert f"of {PLACES // 2} places for calls in progress (--queue-size)" in refused.details()
    held += by_name["partner"].silent(end, PLACES)
    # An eighth of the places is kept for tenants without any.
    wait_for(process, "lumigrad_calls_in_progress", PLACES - PLACES // 8)
    wait_for(process, "lumigrad_calls_in_stage", PLACES - PLACES // 8, stage="receive")
    own = by_name["other"].silent(end, 1)
    wait_for(process, "lumigrad_calls_in_progress", PLACES - PLACES // 8 + 1)

    def gave_way() -> bool:
        """Whether a stalled call gave way to another one, which it does after more than a second."""
        own[1:] = by_name["other"].silent(end, 1)
        wait_until(lambda: own[1].done() or "and others needed its place" in process.log, "a refusal or a place")
        return not own[1].done()

    wait_until(gave_way, "a place")
    (tmp_path / "impatient").touch()
    process.wait_for_log("the caller sent no first message", count=PLACES // 2)
    end.set()
    for call in (*held, *own):
        call.cancel()
    wait_for(process, "lumigrad_calls_in_progress", 0)


def test_a_wrong_token_is_refused(people: tuple[WorkerProcess, dict[str, Repeated]]) -> None:
    _, by_name = people
    wrong = Repeated(by_name["other"].client, "another-0123456789abcdef")
    assert failure(wrong.ask).code() == Code.UNAUTHENTICATED
