"""`lumigrad bench` on a real worker: every line is there and adds up, and nothing stays behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lumigrad.client import Client
from lumigrad.client.base.timings import Timings
from lumigrad.client.benchmark import calls as scenes
from lumigrad.client.benchmark.calls import measure
from support.workers.forks import lumigrad
from support.workers.worker import WorkerProcess

SHORT = ("--size", "32x24", "--size", "16x16", "--count", "50", "--payload-mib", "1", "--seconds", "0.001")


def bench(worker: WorkerProcess, *arguments: str, cwd: Path | None = None) -> str:
    done = lumigrad("bench", *arguments, "--target", worker.target, folder=cwd)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_every_kind_of_call_is_measured(worker_process: WorkerProcess, client: Client):
    before = {handle.scene_id for handle in client.list()}
    told = json.loads(bench(worker_process, *SHORT, "--json"))
    assert (told["target"], told["device"], told["count"]) == (worker_process.target, "cpu", 50)
    lines = {line["what"]: line for line in told["measurements"]}
    sized = {f"{what} {size}" for what in ("render", "backward") for size in ("32x24", "16x16")}
    assert {"round trip", *sized} < set(lines)
    ways = {"stream", "shared memory" if told["lane"] == "shared" else "stream"}
    assert {what for what in lines if "stream" in what or "shared" in what} == {
        f"{w}, {way}" for w in ("update", "get") for way in ways
    }
    for what, line in lines.items():
        assert line["calls"] >= 3 and 0 < line["median_ms"] <= line["p90_ms"]
        assert (line["kernel_ms"] is None) == ("stream" in what or "shared" in what or what == "round trip")
        assert (line["mib_per_s"] is None) == ("stream" not in what and "shared" not in what)
        if line["kernel_ms"] is not None:
            assert 0 < line["kernel_ms"] <= line["p90_ms"] and line["rest_ms"] > 0
    assert {handle.scene_id for handle in client.list()} == before


def test_a_scene_of_ones_own(worker_process: WorkerProcess, client: Client, scene: Path):
    options = ("--size", "16x16", "--payload-mib", "1", "--seconds", "0.001")
    lines = bench(worker_process, "scene.ply", *options, cwd=scene.parent).splitlines()
    assert lines[0].startswith(f"{worker_process.target}, cpu: ") and lines[0].endswith("; 400 Gaussians")
    assert [word for word in lines[1].split() if word != "ms"] == ["median", "p90", "kernel", "rest", "MiB/s"]
    assert lines[2].startswith("round trip")
    assert max(map(len, lines)) < 100


def test_a_call_that_fails_leaves_nothing_behind(worker_process: WorkerProcess, client: Client):
    before = {handle.scene_id for handle in client.list()}
    done = lumigrad("bench", "--size", "20000x20000", "--count", "51", "--target", worker_process.target)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
    assert "expected at most" in done.stderr
    assert {handle.scene_id for handle in client.list()} == before


def test_a_line_counts_no_first_call_and_at_least_three_others():
    calls = []

    def call() -> Timings:
        calls.append(len(calls))
        return Timings({"kernel.blend": 2.0, "queue": 1.0})

    found = measure("nothing", call, 1e-9, nbytes=1 << 20)
    assert (len(calls), found.calls, found.kernel_ms) == (4, 3, 2.0)
    assert found.mib_per_s == pytest.approx(1e3 / found.median_ms)


def test_the_ring_is_closed_and_the_cloud_is_in_its_ball():
    faces = scenes.ring().faces
    edges = [tuple(pair) for start, end in ((0, 1), (1, 2), (2, 0)) for pair in faces[:, [start, end]]]
    assert len(faces) == 5120 and len(set(edges)) == len(edges) and set(edges) == {edge[::-1] for edge in edges}
    assert abs(scenes.cloud(100).means).max() <= 1
