"""The stages of a call: how long they took, and when."""

from __future__ import annotations

import time

import pytest

from lumigrad.server.core.record import CallRecord, StageTimes


def length_ms(times: StageTimes, stage: str) -> float:
    return sum(span.ended - span.started for span in times.spans or () if span.stage == stage) * 1e3


def test_the_spans_of_a_stage_add_up_to_its_time() -> None:
    times = StageTimes(is_traced=True)
    for _ in range(2):
        with times.stage("upload"):
            time.sleep(0.002)
    times.add("queue", 1.5)
    assert [span.stage for span in times.spans or ()] == ["upload", "upload", "queue"]
    assert set(times.milliseconds) == {"upload", "queue"}
    for stage, value in times.milliseconds.items():
        assert length_ms(times, stage) == pytest.approx(value)
    assert times.milliseconds["upload"] >= 4


def test_the_stages_of_a_kernel_lie_in_order_and_end_when_it_is_told_of() -> None:
    times = StageTimes(is_traced=True)
    with times.stage("upload"):
        pass
    time.sleep(0.01)
    times.add_kernel({"sort": 2.0, "blend": 5.0})
    assert times.spans is not None
    upload, sort, blend = times.spans
    assert upload.ended <= sort.started
    assert (sort.stage, blend.stage) == ("kernel.sort", "kernel.blend")
    assert sort.ended == pytest.approx(blend.started)
    assert blend.ended <= time.perf_counter()
    assert length_ms(times, "kernel.sort") == pytest.approx(2.0)
    assert length_ms(times, "kernel.blend") == pytest.approx(5.0)


def test_a_kernel_that_claims_more_time_than_there_was_stays_behind_what_came_before() -> None:
    times = StageTimes(is_traced=True)
    with times.stage("upload"):
        pass
    # The time exceeds the steps of a clock that has run for months.
    time.sleep(0.001)
    times.add_kernel({"sort": 2000.0, "blend": 6000.0})
    assert times.spans is not None
    upload, sort, blend = times.spans
    assert upload.ended <= sort.started <= sort.ended <= blend.started <= blend.ended <= time.perf_counter()
    assert 3 * length_ms(times, "kernel.sort") == pytest.approx(length_ms(times, "kernel.blend"), rel=1e-2)
    assert times.milliseconds == {**times.milliseconds, "kernel.sort": 2000.0, "kernel.blend": 6000.0}


def test_spans_have_a_time_of_day() -> None:
    before = time.time_ns()
    times = StageTimes(is_traced=True)
    with times.stage("decode"):
        time.sleep(0.001)
    record = CallRecord("Test.Call", "id", times)
    record.end()
    assert times.spans is not None
    (span,) = times.spans
    moments = [record.epoch_ns(moment) for moment in (times.created, span.started, span.ended, times.ended)]
    assert moments == sorted(moments)
    assert before - 10**6 <= moments[0] < moments[-1] <= time.time_ns() + 10**6


def test_only_traced_calls_keep_intervals() -> None:
    times = StageTimes()
    with times.stage("decode"):
        pass
    times.add_kernel({"blend": 1.0})
    assert times.spans is None
    assert set(times.milliseconds) == {"decode", "kernel.blend"}
