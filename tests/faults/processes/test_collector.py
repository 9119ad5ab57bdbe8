"""A collector that hangs, fails or is missing costs no calls, no memory, and no time when the worker ends."""

from __future__ import annotations

import signal
import time

from support.calls.raw_calls import RawClient, spec_of, sphere_cloud
from support.deploy.collector import grpc_collector
from support.ports import reserved_port
from support.workers.worker import WorkerProcess, worker

RENDER = "lumigrad.v1.RenderService/Render"
BATCH = 64
VARIABLES = {
    "OTEL_BSP_SCHEDULE_DELAY": "50",
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": str(BATCH),
    "OTEL_BSP_MAX_QUEUE_SIZE": str(2 * BATCH),
    "OTEL_EXPORTER_OTLP_TIMEOUT": "0.3",
}
FAILURE = "traces cannot be exported; calls are not affected"


def render(process: WorkerProcess, count: int) -> None:
    client = RawClient(process.target)
    scene_id = client.put(sphere_cloud()).scene.scene_id
    for _ in range(count):
        client.render(spec_of(scene_id=scene_id))
    client.close()


def wait_for_spans(process: WorkerProcess, result: str, count: int) -> None:
    until = time.monotonic() + 150
    while process.metric("lumigrad_trace_spans_total", result=result) < count:
        assert time.monotonic() < until, process.metrics()
        time.sleep(0.05)


def test_a_collector_that_hangs_and_comes_back() -> None:
    with grpc_collector() as (collector, url):
        collector.answers.clear()
        with worker("--device", "cpu", "--trace-endpoint", url, variables=VARIABLES) as process:
            # More spans than the worker keeps for the collector.
            render(process, BATCH)
            wait_for_spans(process, "lost", 2 * BATCH)
            process.wait_for_log(FAILURE)
            process.wait_for_log("DEADLINE_EXCEEDED")
            assert process.log.count(FAILURE) == 1
            process.wait_for_log("code=OK", count=BATCH + 1)
            assert process.log.count("code=OK") == BATCH + 1
            collector.answers.set()
            render(process, 1)
            wait_for_spans(process, "exported", 1)
            process.wait_for_log("traces are exported again")
            assert collector.spans


def test_a_collector_that_hangs_does_not_hold_up_the_end() -> None:
    with grpc_collector() as (collector, url):
        collector.answers.clear()
        patient = {**VARIABLES, "OTEL_EXPORTER_OTLP_TIMEOUT": "600"}
        with worker("--device", "cpu", "--trace-endpoint", url, variables=patient) as process:
            render(process, 3)
            started = time.monotonic()
            process.signal(signal.SIGTERM)
            assert process.wait() == 0
            assert time.monotonic() - started < 120


def test_a_collector_that_is_not_there_and_comes() -> None:
    with (
        reserved_port() as port,
        worker("--device", "cpu", "--trace-endpoint", f"http://127.0.0.1:{port}", variables=VARIABLES) as process,
    ):
        render(process, 3)
        wait_for_spans(process, "lost", 1)
        process.wait_for_log(FAILURE)
        with grpc_collector(port) as (collector, _):
            render(process, 3)
            collector.wait_for(RENDER)
            process.wait_for_log("traces are exported again")
        assert "Traceback" not in process.log
