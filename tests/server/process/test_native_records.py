"""Calls that ran without Python are counted as all others are, and logged byte for byte alike."""

from __future__ import annotations

import io
import json
import logging
import random
from collections.abc import Iterator

import pytest
from prometheus_client import generate_latest

from lumigrad.kernels._native import Records
from lumigrad.server.core import logs
from lumigrad.server.core.metrics import Metrics
from lumigrad.server.core.notes import Notes
from lumigrad.server.core.record import CallRecord, StageTimes

METHOD = "RenderService.Render"
TENANTS = ("", "alice", "a b", "Zoë", 'with "quotes"')
STAGES = ("decode", "queue", "kernel.blend", "download")


def made(seed: int, tenants: tuple[str, ...] = TENANTS) -> CallRecord:
    chosen = random.Random(seed)
    times = StageTimes()
    times.milliseconds = {stage: chosen.choice((0.05, 0.0731, 3.0, chosen.expovariate(1.0))) for stage in STAGES}
    return CallRecord(
        METHOD,
        f"id.{seed}",
        times,
        chosen.choice(tenants),
        "gaussians",
        chosen.choice(("forward", "backward")),
        bytes_received=chosen.choice((0, chosen.randrange(10_000))),
        bytes_sent=chosen.randrange(10_000),
        batch_views=chosen.randrange(3),
        milliseconds=chosen.choice((0.1, 1.0, 12.5, 0.0005, 2.5004999, chosen.expovariate(0.1))),
        ended_at=chosen.uniform(0.0, 2e9),
    )


def add(records: Records, record: CallRecord) -> None:
    """Add the same record without Python."""
    records.add(
        method=record.method,
        request_id=record.request_id,
        tenant=record.tenant,
        engine=record.engine,
        stages=list(record.times.milliseconds.items()),
        milliseconds=record.milliseconds,
        ended_at=record.ended_at,
        bytes_sent=record.bytes_sent,
        batch_views=record.batch_views,
        bytes_received=record.bytes_received,
        operation=record.operation,
    )


@pytest.fixture(params=["plain", "json", "foreign"])
def log(request: pytest.FixtureRequest) -> Iterator[io.StringIO]:
    """The text that is written to the log in each format, and by a handler that is not ours."""
    stream, before, level = io.StringIO(), logs.logger.handlers[:], logs.logger.level
    foreign = request.param == "foreign"
    handler: logging.Handler = logging.StreamHandler(stream) if foreign else logs._LineHandler(stream)
    handler.setFormatter(logs._JsonFormatter() if request.param == "json" else logs._PlainFormatter())
    logs.logger.handlers[:] = [handler]
    logs.logger.setLevel(logging.INFO)
    yield stream
    logs.logger.handlers[:] = before
    logs.logger.setLevel(level)


@pytest.mark.parametrize("least_ms", [0.0, 5.0])
def test_lines_are_the_same(log: io.StringIO, least_ms: float) -> None:
    notes = Notes(Metrics(), least_ms=least_ms)
    written = []
    for is_native in (False, True):
        for seed in range(300):
            add(notes.native, made(seed)) if is_native else notes.add(made(seed))
        notes.write()
        written.append(log.getvalue())
        log.seek(0)
        log.truncate()
    notes.close()
    usual, native = (text.splitlines() for text in written)
    assert len(native) == 300 if not least_ms else 0 < len(native) < 300
    assert native == usual


def test_metrics_are_the_same(log: io.StringIO) -> None:
    texts = []
    for is_native in (False, True):
        metrics = Metrics()
        notes = Notes(metrics)
        for seed in range(300):
            add(notes.native, made(seed)) if is_native else notes.add(made(seed))
        text = generate_latest(metrics.registry).decode()
        texts.append([line for line in text.splitlines() if line.startswith("lumigrad_")])
        notes.close()
    for usual, native in zip(*texts, strict=True):
        name, value = usual.rsplit(" ", 1)
        assert native.rsplit(" ", 1)[0] == name
        assert float(native.rsplit(" ", 1)[1]) == pytest.approx(float(value), rel=1e-12)


def test_blocks_are_of_whole_lines_and_no_longer_than_asked_for() -> None:
    records = Records()
    for seed in range(200):
        add(records, made(seed))
    batch = records.take()
    blocks = batch.blocks(is_json=True, most_bytes=600, quote=json.dumps)
    assert all(block.endswith("}\n") and len(block.encode()) <= 600 for block in blocks)
    assert len([json.loads(line) for block in blocks for line in block.splitlines()]) == len(batch) == 200
    assert len(records.take()) == 0
