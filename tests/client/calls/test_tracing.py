"""Traces across client and worker, as a collector receives them from real processes of both."""

from __future__ import annotations

import inspect
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lumigrad.client import Client
from lumigrad.client.rendering.stream import RenderStream
from support.deploy.collector import Collector, ReceivedSpan, grpc_collector
from support.workers.worker import WorkerProcess, worker

PROGRAM = Path(__file__).parents[2] / "support" / "traced_program.py"
RENDER, BACKWARD = (f"lumigrad.v1.RenderService/{name}" for name in ("Render", "Backward"))
PUT, UPDATE = (f"lumigrad.v1.SceneService/{name}" for name in ("Put", "Update"))
QUERY, INFO = "lumigrad.v1.DistanceService/Query", "lumigrad.v1.WorkerService/Info"
# Both processes read the same clock, but it may be adjusted meanwhile.
CLOCK_NS = 5_000_000


@pytest.fixture(scope="module")
def traced_worker() -> Iterator[tuple[WorkerProcess, Collector, str]]:
    """A worker that keeps a trace only if the caller does, and one forward state."""
    variables = {"OTEL_TRACES_SAMPLER": "parentbased_always_off", "OTEL_BSP_SCHEDULE_DELAY": "50"}
    with grpc_collector() as (collector, url):
        options = ("--device", "cpu", "--context-mib", "3", "--trace-endpoint", url)
        with worker(*options, variables=variables) as process:
            yield process, collector, url


@pytest.fixture(scope="module")
def spans(traced_worker: tuple[WorkerProcess, Collector, str]) -> Collector:
    """All that a program and its worker have exported once the program has ended."""
    process, collector, url = traced_worker
    done = subprocess.run([sys.executable, PROGRAM, process.target, url], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    for name, count in ((RENDER, 11), (BACKWARD, 5)):
        collector.wait_for(name, count)
    return collector


def of_client(spans: Collector, program_span: str) -> list[ReceivedSpan]:
    """The spans right below one of the program's own."""
    (above,) = spans.wait_for(program_span)
    found = spans.children(above)
    assert {span.trace_id for span in found} == {above.trace_id}
    return found


def test_each_verb_is_a_span_below_the_programs_own(spans: Collector) -> None:
    found = of_client(spans, "step")
    assert [span.name for span in found] == [PUT, RENDER, BACKWARD, UPDATE, QUERY]
    for span in found:
        assert (span.kind, span.status, span.resource["service.name"]) == ("CLIENT", 0, "trainer")
        assert span.attributes["rpc.method"] == span.name
        assert span.attributes["rpc.response.status_code"] == "OK"
        assert span.attributes["server.address"] == "127.0.0.1"
        assert span.attributes["server.port"] > 0
        assert span.attributes["lumigrad.retries"] == 0
    put, render, backward, update, query = (span.attributes for span in found)
    assert put["lumigrad.sent_bytes"] >= 50 * 7 * 4
    assert render["lumigrad.scene_id"] == backward["lumigrad.scene_id"] == update["lumigrad.scene_id"]
    assert (render["lumigrad.engine"], query["lumigrad.engine"]) == ("spheres", "meshes")
    assert (render["lumigrad.cameras"], render["lumigrad.pixels"]) == (1, 320 * 240)
    assert render["lumigrad.received_bytes"] == backward["lumigrad.sent_bytes"] == 320 * 240 * 3 * 4
    assert query["lumigrad.rows"] == 1


def test_the_workers_spans_are_below_the_verbs_that_called_it(spans: Collector) -> None:
    expected = {
        # Get asks whether the worker has the content.
        PUT: ["lumigrad.v1.SceneService/Get", PUT],
        RENDER: [RENDER],
        BACKWARD: [BACKWARD],
        UPDATE: [UPDATE],
        # The query stores the mesh first.
        QUERY: ["lumigrad.v1.SceneService/Get", PUT, QUERY],
    }
    for verb in of_client(spans, "step"):
        # Whichever verb is the first with a large payload opens the lane for it.
        below = [span for span in spans.children(verb) if not span.name.endswith("/OpenLane")]
        assert [span.name for span in below] == expected[verb.name]
        assert verb.attributes["lumigrad.calls"] == len(below)
        for span in below:
            assert (span.kind, span.resource["service.name"]) == ("SERVER", "lumigrad")
            assert verb.start_ns - CLOCK_NS <= span.start_ns <= span.end_ns <= verb.end_ns + CLOCK_NS
        stages = {span.name for span in spans.children(below[-1])}
        assert {"decode", "queue"} <= stages


def test_what_the_worker_lost_shows_as_repairs(spans: Collector) -> None:
    _, _, render, _, _, backward = of_client(spans, "losses")
    assert (render.name, render.events) == (RENDER, [("lumigrad.repair", {"lumigrad.lost": "scene"})])
    assert [span.attributes["rpc.response.status_code"] for span in spans.children(render)] == [
        *("NOT_FOUND", "NOT_FOUND"),
        *("OK", "OK"),
    ]
    assert (backward.name, backward.events) == (BACKWARD, [("lumigrad.repair", {"lumigrad.lost": "context"})])
    assert [span.attributes.get("lumigrad.reason") for span in spans.children(backward)] == ["context_lost", None]


def test_failures_tell_their_kind_and_repetitions_and_no_text(spans: Collector) -> None:
    render, info = of_client(spans, "failures")
    assert (render.name, render.status, render.attributes["error.type"]) == (RENDER, 2, "INVALID_ARGUMENT")
    assert (info.name, info.status, info.attributes["error.type"]) == (INFO, 2, "UNAVAILABLE")
    retries = info.attributes["lumigrad.retries"]
    assert retries >= 1
    assert info.attributes["lumigrad.calls"] == 1 + retries
    assert [name for name, _ in info.events] == ["lumigrad.retry"] * retries
    assert info.events[0][1]["lumigrad.attempt"] == 2
    assert not [raw for raw in spans.raw if b"do-not-quote-this" in raw]


def test_a_trace_that_is_not_kept_is_kept_by_nobody(
    spans: Collector, traced_worker: tuple[WorkerProcess, Collector, str]
) -> None:
    unkept = "1234567890abcdef1234567890abcdef"
    traced_worker[0].wait_for_log(f"trace_id={unkept}")
    assert unkept not in {span.trace_id for span in spans.spans}


def test_every_verb_of_the_client_is_traced() -> None:
    verbs = {name for name, member in inspect.getmembers(Client, inspect.isfunction) if not name.startswith("_")}
    # Methods that only call traced ones, and `close`.
    untraced = {"render", "query", "stream", "close"}
    assert {name for name in verbs if "begin" not in getattr(Client, name).__code__.co_names} == untraced
    assert "begin" in RenderStream.__init__.__code__.co_names


@pytest.mark.parametrize("imports", ["", "import opentelemetry.trace"])
def test_a_program_that_has_not_set_tracing_up_sends_and_imports_nothing(
    traced_worker: tuple[WorkerProcess, Collector, str], imports: str
) -> None:
    process, collector, _ = traced_worker
    script = f"""
{imports}
import sys
from lumigrad.client import Camera, Client, Spheres
camera = Camera.look_at(eye=(0, -1, -5), target=(0, 0, 0), up=(0, -1, 0), width=16, height=16)
with Client({process.target!r}) as client:
    frame = client.render(client.put(Spheres([[0, 0, 0]], [[1, 1, 1]], [1])), camera, retain=True)
    frame.backward(frame.color)
print("lumigrad.client.transport.spans" in sys.modules, "opentelemetry" in sys.modules)
"""
    began_ns = time.time_ns()
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=250)
    assert said.stdout.split() == ["False", str(bool(imports))], said.stderr
    # Spans of earlier calls may still come.
    assert not [span for span in collector.spans if span.start_ns >= began_ns]
