"""Reports of failed tests fill a screen at most."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.reports import shortened

FAILING = """
import numpy as np
import pytest

class Process:
    log = "the last line of the worker"

@pytest.fixture
def worker():
    return Process()

def test_long(worker):
    print("\\n".join(map(str, range(5000))))
    print("x" * 5000)
    assert np.zeros(4_000_000, np.uint8).tobytes() == b"", "the value"
"""


def test_a_failure_prints_a_screen_and_names_its_error(tmp_path: Path) -> None:
    (tmp_path / "test_failing.py").write_text(FAILING, encoding="utf-8")
    tests = Path(__file__).parent
    command = [sys.executable, "-m", "pytest", "-p", "support.reports", "-p", "no:cacheprovider", str(tmp_path)]
    # With it pytest shortens nothing itself.
    environment = {**os.environ, "CI": "true"}
    done = subprocess.run(command, cwd=tests, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "AssertionError: the value" in done.stdout
    assert "Log of worker" in done.stdout and "the last line of the worker" in done.stdout
    assert "lines ...]" in done.stdout and "characters ...]" in done.stdout
    assert len(done.stdout.splitlines()) < 150 and len(done.stdout) < 20_000


def test_a_text_that_fits_is_left_as_it_is() -> None:
    text = "\n".join(str(number) for number in range(40))
    assert shortened(text) == text
    assert shortened(f"{text}\nthe last").splitlines()[-1] == "the last"
