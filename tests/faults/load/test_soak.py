"""A short soak finds wrong answers, and its trends, which need longer, find what grows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from soak.trend import fitted

ROOT = Path(__file__).parents[3]


def test_a_short_soak_passes(tmp_path: Path) -> None:
    out = tmp_path / "soak.json"
    options = [
        "--minutes",
        "0.15",
        "--window-seconds",
        "3",
        "--rate",
        "8",
        "--out",
        str(out),
    ]
    command = [sys.executable, "-m", "tests.soak", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert found["good"] and not found["calls"]["failed"]
    assert found["faults"]["killed worker"] >= 1
    assert any(name.startswith("attack: ") for name in found["faults"])
    assert sum(found["calls"]["good"].values()) > 0


@pytest.mark.parametrize(("step", "is_good"), [(0.0, True), (0.5, True), (1.0, False)])
def test_a_trend_is_seen_through_noise_and_odd_windows(step: float, is_good: bool) -> None:
    values = [100 + step * i + (i % 3) for i in range(40)]
    values[20] += 1000
    assert fitted("memory", values, 16.0).is_good is is_good


def test_a_few_windows_show_no_trend() -> None:
    assert fitted("files", [9.0, 18.0, 27.0], 2.0).is_good
    assert not fitted("files", [9.0 * i for i in range(20)], 2.0).is_good
