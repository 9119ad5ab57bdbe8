"""Metrics and log lines of calls are written in batches, but no reader misses a call that has ended."""

from __future__ import annotations

import io
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from select import PIPE_BUF

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from lumigrad.server.core import logs
from lumigrad.server.core.histograms import Histograms
from lumigrad.server.core.metrics import Metrics
from lumigrad.server.core.notes import Notes
from lumigrad.server.core.record import CallRecord
from lumigrad.v1 import worker_pb2
from support.calls.raw_calls import RawClient
from support.threads import run_at_once
from support.workers.worker import worker

METHOD = "Test.Call"


class Writes(io.StringIO):
    """Keeps the text of each write."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def write(self, text: str) -> int:
        self.texts.append(text)
        return len(text)


@pytest.fixture
def written() -> Iterator[Writes]:
    """The writes to the log."""
    stream, handlers, level = Writes(), logs.logger.handlers[:], logs.logger.level
    handler = logs._LineHandler(stream)
    handler.setFormatter(logs._PlainFormatter())
    logs.logger.handlers[:] = [handler]
    logs.logger.setLevel(logging.INFO)
    yield stream
    logs.logger.handlers[:] = handlers
    logs.logger.setLevel(level)


def ended(number: int = 0, **values: object) -> CallRecord:
    record = CallRecord(METHOD, f"call-{number}", **values)  # type: ignore[arg-type]
    record.end()
    return record


def calls(metrics: Metrics, code: str = "OK") -> float:
    return metrics.registry.get_sample_value("lumigrad_calls_total", {"method": METHOD, "code": code}) or 0.0


def test_a_reader_of_the_metrics_finds_every_call_that_has_ended(written: Writes) -> None:
    metrics = Metrics()
    notes = Notes(metrics)
    for number in range(200):
        notes.add(ended(number))
        assert calls(metrics) == number + 1
    notes.close()


def test_a_log_that_is_stuck_does_not_keep_readers_of_the_metrics(written: Writes) -> None:
    metrics = Metrics()
    notes = Notes(metrics)
    (handler,) = logs.logger.handlers
    handler.acquire()
    try:
        notes.add(ended(code="INTERNAL"))
        time.sleep(0.2)
        notes.add(ended())
        assert (calls(metrics), calls(metrics, "INTERNAL")) == (1, 1)
    finally:
        handler.release()
    notes.close()


def test_lines_are_written_together_in_blocks_that_a_pipe_takes_whole(written: Writes) -> None:
    metrics = Metrics()
    notes = Notes(metrics)
    with notes._writing:
        for number in range(500):
            notes.add(ended(number))
    notes.close()
    lines = "".join(written.texts).splitlines()
    assert [re.findall(r"request_id=call-(\d+) ", line) for line in lines] == [[str(n)] for n in range(500)]
    assert len(written.texts) < len(lines) / 10
    assert all(len(text.encode()) <= PIPE_BUF and text.endswith("\n") for text in written.texts)


def test_a_line_has_the_time_at_which_its_call_ended(written: Writes) -> None:
    notes = Notes(Metrics())
    record = ended(code="CANCELLED", why="the caller went away")
    record.ended_at = 0.0
    notes.add(record)
    notes.close()
    (line,) = "".join(written.texts).splitlines()
    assert line.startswith("1970-01-01T00:00:00.000+00:00 INFO call request_id=call-0 ")
    assert line.endswith(' why="the caller went away"')


def test_an_error_is_written_at_once_although_batches_are_rare(
    written: Writes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lumigrad.server.core.notes._SECONDS", 60.0)
    notes = Notes(Metrics())
    notes.add(ended(code="DEADLINE_EXCEEDED"))
    until = time.monotonic() + 60
    while not written.texts:
        assert time.monotonic() < until, "nothing was written"
        time.sleep(0.001)
    notes.close()


def test_records_of_many_threads_are_all_written_once(written: Writes) -> None:
    metrics = Metrics()
    notes = Notes(metrics)

    def add() -> None:
        for number in range(300):
            notes.add(ended(number, code="OK" if number % 3 else "CANCELLED"))

    run_at_once(*[add] * 4)
    notes.close()
    assert (calls(metrics), calls(metrics, "CANCELLED")) == (800, 400)
    assert len("".join(written.texts).splitlines()) == 1200


def test_histograms_look_as_those_of_prometheus() -> None:
    bounds, values = (0.001, 0.01, 2.0), (0.0, 0.001, 0.0011, 0.5, 2.0, 3.0)
    theirs, ours = CollectorRegistry(), CollectorRegistry()
    histogram = Histogram("lumigrad_x_seconds", "Seconds.", ["a", "b"], buckets=bounds, registry=theirs)
    histograms = Histograms("x_seconds", "Seconds.", ["a", "b"], buckets=bounds, registry=ours)
    histogram.labels("never", "seen")
    histograms.show("never", "seen")
    for value in values:
        histogram.labels("1", "2").observe(value)
        histograms.observe(value, "1", "2")
    lines = [line for line in generate_latest(theirs).decode().splitlines() if "_created" not in line]
    assert generate_latest(ours).decode().splitlines() == lines


def test_a_worker_that_is_stopped_has_written_every_line() -> None:
    count = 50
    with worker("--device", "cpu") as process:
        client = RawClient(process.target)
        for number in range(count):
            metadata = (("x-request-id", f"last-{number}"),)
            client.worker_stub.Info(worker_pb2.InfoRequest(), timeout=60, metadata=metadata)
        client.close()
        process.stop()
        ids = re.findall(r"request_id=last-(\d+) ", process.log)
    assert sorted(map(int, ids)) == list(range(count))


def test_other_processes_write_between_the_blocks() -> None:
    script = (
        "import os, sys\nfrom lumigrad.server.core import logs\nlogs.configure('plain')\nfork = os.fork()\n"
        "for _ in range(20):\n  with logs.together():\n    for n in range(200): logs.event(f'{fork > 0} ' * 30)\n"
        "if fork: os.wait()\nos._exit(0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, timeout=250, env=os.environ
    )
    lines = done.stderr.splitlines()
    assert len(lines) == 8000
    assert all(line.count("True ") in (0, 30) and len(set(line.split("INFO ")[1].split())) == 1 for line in lines)
