"""Retained Renders and Backwards of a prepared kind, computed without Python, can be cancelled at any time.

Seconds are the worker's processor time, which other work on the machine does not affect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lumigrad.protos.service import RENDER_SERVICE, SINGLE_REPLY
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.v1 import render_pb2, worker_pb2
from support.calls.answers import UNKNOWN
from support.calls.gaussian_calls import gaussian_spec
from support.calls.raw_calls import RawClient, opencv_camera, spec_of, sphere_cloud
from support.calls.raw_lane import RawLane
from support.calls.repeats import GENERAL_PATH, TELL_OF_GENERAL_PATH
from support.workers.slow_render import large_gaussians, wait_for, wait_until, worked_seconds
from support.workers.worker import WorkerProcess, worker, worker_fixture

KINDS = ("gaussians", "spheres")
METADATA = (SINGLE_REPLY, ("lumigrad-message-bytes", "3500000"))
# Pixels per side, and number of primitives.
SLOW, QUICK, LARGE = {"gaussians": (800, 15_000), "spheres": (800, 6000)}, (32, 50), (300, 50)


class Passes:
    """Calls of one kind, for square images of `size` pixels per side, each answered by one message."""

    def __init__(self, client: RawClient, kind: str, size: int, count: int) -> None:
        self._client = client
        self._size = size
        self.kind = kind
        self.lane: RawLane | None = None
        path = f"/{RENDER_SERVICE}"
        self._render = client.channel.unary_unary(f"{path}/Render")
        self._stream = client.channel.unary_stream(f"{path}/Render")
        self._backward = client.channel.unary_unary(f"{path}/Backward")
        cloud = large_gaussians(count) if kind == "gaussians" else sphere_cloud(count, radius=1.0, seed=99)
        self.scene_id = client.put(cloud).scene.scene_id

    def prepare(self) -> Passes:
        """Let the general way answer the first calls."""
        names = [self.name_of(self.render().result()) for _ in range(2)]
        for _ in range(2):
            self.backward(names[1]).result()
        self.release(*names)
        return self

    def render(self, view: int = 0, way: str = "native") -> Any:
        make, settings = (gaussian_spec, {}) if self.kind == "gaussians" else (spec_of, {"gamma": 1.0})
        camera = opencv_camera(self._size, self._size, x=0.01 * view)
        spec = make(camera, scene_id=self.scene_id, outputs=["alpha"], **settings)
        request = render_pb2.RenderRequest(spec=spec, retain=True).SerializeToString()
        if way == "stream":
            return self._stream(request, timeout=240)
        if way == "lane":
            self.lane = self.lane or RawLane(self._client)
            return self._render.future(request, timeout=240, metadata=(*METADATA, *self.lane.metadata(view + 1)))
        return self._render.future(UNKNOWN + request if way == "general" else request, timeout=240, metadata=METADATA)

    def backward(self, name: str) -> Any:
        payload = PayloadWriter()
        gradient = np.random.default_rng(1).normal(size=(1, self._size, self._size)).astype(np.float32)
        spec = render_pb2.BackwardSpec(context_id=name)
        spec.output_gradients.add(name="alpha", tensor=payload.add(gradient))
        data = b"".join(payload.buffers)
        request = render_pb2.BackwardRequest(spec=spec, payload_bytes=len(data), data=data).SerializeToString()
        return self._backward.future(request, timeout=240, metadata=METADATA)

    def release(self, *names: str) -> None:
        for name in names:
            self._client.render_stub.Release(render_pb2.ReleaseRequest(context_id=name), timeout=240)

    @staticmethod
    def name_of(reply: bytes) -> str:
        name: str = render_pb2.RenderReply.FromString(reply).context_id
        assert name
        return name

    @staticmethod
    def gradients(reply: bytes) -> bytes:
        data: bytes = render_pb2.BackwardReply.FromString(reply).data
        assert any(data)
        return data


process = worker_fixture(before=TELL_OF_GENERAL_PATH)


@pytest.fixture(params=KINDS)
def slow(request: pytest.FixtureRequest, client: RawClient) -> Passes:
    return Passes(client, request.param, *SLOW[request.param]).prepare()


@pytest.fixture
def is_native(process: WorkerProcess, request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails if a call took the general way."""
    before = process.log.count(GENERAL_PATH)
    yield
    assert process.log.count(GENERAL_PATH) == before


def seconds_of(process: WorkerProcess, call: Any) -> tuple[float, bytes]:
    before = worked_seconds(process)
    reply: bytes = call.result()
    return worked_seconds(process) - before, reply


def seconds_to_stop(process: WorkerProcess, start: Callable[[], Any], forget: Callable[[bytes], None]) -> float:
    """The least time of some calls after they are cancelled, which a busy machine may do late, or after their ends."""
    took = []
    while len(took) < 3:
        call = start()
        is_seen = lambda: process.metric("lumigrad_calls_in_stage", stage="device") == 1 or call.done()  # noqa: B023, E731
        wait_until(is_seen, "a pass on the device")
        before = worked_seconds(process)
        if not call.cancel():
            forget(call.result())
            continue
        wait_for(process, "lumigrad_calls_in_progress", 0)
        wait_for(process, "lumigrad_transit_bytes", 0)
        took.append(worked_seconds(process) - before)
        if took[-1] < 0.05:
            break
    return min(took)


def test_passes_that_are_given_up_stop_and_leave_states_as_they_are(
    process: WorkerProcess, slow: Passes, is_native: None
) -> None:
    context = slow.name_of(slow.render().result())
    whole, reply = seconds_of(process, slow.backward(context))
    kept = process.metric("lumigrad_context_bytes")
    took = seconds_to_stop(process, lambda: slow.backward(context), lambda _: None)
    print(f"{slow.kind}: a backward pass of {whole:.2f} s ended after {took:.2f} s")
    assert took < whole / 3
    assert slow.gradients(slow.backward(context).result()) == slow.gradients(reply)
    whole, other = seconds_of(process, slow.render(1))
    slow.release(slow.name_of(other))
    took = seconds_to_stop(process, lambda: slow.render(1), lambda reply: slow.release(slow.name_of(reply)))
    print(f"{slow.kind}: a render of {whole:.2f} s ended after {took:.2f} s")
    assert took < whole / 3
    assert process.metric("lumigrad_contexts") == 1 and process.metric("lumigrad_context_bytes") == kept
    # The kernels' memory still contains the cancelled pass.
    assert slow.gradients(slow.backward(context).result()) == slow.gradients(reply)
    slow.release(context)


@pytest.fixture(scope="module")
def paused(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[WorkerProcess, RawClient, Path]]:
    """A worker that pauses between a pass and its reply while the returned file exists."""
    pause = tmp_path_factory.mktemp("paused") / "pause"
    before = (
        "import os, sys, time",
        "from functools import partialmethod",
        "from lumigrad.server.storage.contexts import ContextStore as store",
        "def late(self, add, *state):\n"
        "    print('adding a state', file=sys.stderr, flush=True)\n"
        f"    while os.path.exists({str(pause)!r}):\n"
        "        time.sleep(0.01)\n"
        "    return add(self, *state)",
        "store.add = partialmethod(late, store.add)",
    )
    with worker("--device", "cpu", before=before) as process, RawClient(process.target) as client:
        yield process, client, pause
        pause.unlink(missing_ok=True)


@pytest.mark.parametrize("way", ["native", "general", "stream", "lane"])
@pytest.mark.parametrize("kind", KINDS)
def test_callers_that_go_before_the_reply_leave_no_state(
    paused: tuple[WorkerProcess, RawClient, Path], kind: str, way: str
) -> None:
    process, client, pause = paused
    passes = Passes(client, kind, *(LARGE if way == "lane" else QUICK)).prepare()
    wait_for(process, "lumigrad_contexts", 0)
    for number in range(2):
        pause.touch()
        told = process.log.count("adding a state")
        call = passes.render(number, way)
        process.wait_for_log("adding a state", count=told + 1)
        call.cancel()
        # Calls on one connection arrive in order, so the worker knows of the cancellation before it answers this one.
        client.worker_stub.Info(worker_pb2.InfoRequest(), timeout=240)
        pause.unlink()
        wait_for(process, "lumigrad_calls_in_progress", 0)
        assert process.metric("lumigrad_contexts") == 0
    if passes.lane is not None:
        # The second call had the memory of the first, besides that with which the lane was opened.
        passes.lane.lease(9, 1)
        assert len(passes.lane.regions) == 2
        passes.lane.close()
