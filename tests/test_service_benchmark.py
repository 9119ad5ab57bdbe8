"""The benchmark of the service runs, and its meter separates the time with the GIL from the time without."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.service.gil_meter import GilMeter, Spent, Unknown

ROOT = Path(__file__).parents[1]
# Works for 0.1 s with the GIL, in two threads, then about as long without it, and prints how long the latter took.
PROGRAM = """
import sys, threading, time, zlib

def work(until):
    while time.thread_time() < until:
        pass

data = bytes(range(256)) * 4096
print(flush=True)
sys.stdin.readline()
threads = [threading.Thread(target=work, args=(0.05,)) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
start, alone = time.thread_time(), 0.0
while alone < 0.1:
    zlib.compress(data, 9)
    alone = time.thread_time() - start
print(alone, flush=True)
sys.stdin.readline()
"""


def metered(folder: Path, *, turned_on: bool) -> tuple[Spent, float]:
    """Returns the program's time by the meter, and the seconds that it reports to have worked without the GIL."""
    try:
        meter = GilMeter(folder)
    except Unknown as error:
        pytest.skip(str(error))
    environment = {**os.environ, **meter.environment}
    command, pipe = [sys.executable, "-c", PROGRAM], subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()
        watch = meter.watch(process.pid)
        watch.turn(on=turned_on)
        before = watch.spent()
        print(file=process.stdin, flush=True)
        alone = float(process.stdout.readline())
        return watch.spent() - before, alone


def test_the_meter_counts_the_processor_time_with_the_gil(tmp_path: Path) -> None:
    spent, alone = metered(tmp_path, turned_on=True)
    assert spent.takes > 10
    # Threads wait for the GIL more often on a busy machine, and take time without it for that.
    assert 0.09e9 < spent.held < 0.13e9
    assert abs(spent.processor - spent.held - alone * 1e9) < 0.03e9


def test_a_meter_that_is_off_counts_nothing(tmp_path: Path) -> None:
    spent, _ = metered(tmp_path, turned_on=False)
    assert (spent.takes, spent.held) == (0, 0)
    assert spent.processor > 0.2e9


def test_without_a_compiler_it_is_said_that_the_gil_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", str(tmp_path / "missing"))
    with pytest.raises(Unknown, match="no time with the GIL is measured"):
        GilMeter(tmp_path)


def test_the_benchmark_writes_ratios_and_goals(tmp_path: Path) -> None:
    results = tmp_path / "service.json"
    program = [sys.executable, "-m", "tests.benchmarks.service", "--rounds", "1", "--calls", "8", "--clients", "2"]
    done = subprocess.run([*program, "--results", results], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    entries = json.loads(results.read_text())
    cases = {entry["case"]: entry for entry in entries if "case" in entry}
    small = cases["32x24 uint8, 2 clients"]
    assert small["ratios"]["rate"] > 0 and small["ratios"]["processor_us"] > 0
    goals = [entry["what"] for entry in entries if "goal" in entry]
    assert "32x24 uint8, 2 clients: rate" in goals
    assert all(f"| {what} |" in done.stdout for what in goals)
