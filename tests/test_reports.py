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
    assert np.zeros(200_000, np.uint8).tobytes() == b"", "the value"
"""


def run_pytest(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "support.reports", "-p", "no:cacheprovider", str(folder)]
    # With CI set, pytest itself shortens nothing.
    environment = {**os.environ, "CI": "true"}
    tests = Path(__file__).parent
    return subprocess.run(command, cwd=tests, env=environment, capture_output=True, text=True, check=False)


def test_a_failure_prints_a_screen_and_names_its_error(tmp_path: Path) -> None:
    (tmp_path / "test_failing.py").write_text(FAILING, encoding="utf-8")
    done = run_pytest(tmp_path)
    assert done.returncode == 1
    assert "AssertionError: the value" in done.stdout
    assert "Log of worker" in done.stdout and "the last line of the worker" in done.stdout
    assert "lines ...]" in done.stdout and "characters ...]" in done.stdout
    assert len(done.stdout.splitlines()) < 150 and len(done.stdout) < 20_000


def test_a_failure_is_reported_where_its_source_cannot_be_parsed(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import ast, pytest\n"
        "@pytest.fixture(autouse=True)\n"
        "def parser(monkeypatch):\n"
        "    def parse(*_):\n"
        "        raise SystemError('AST constructor recursion depth mismatch')\n"
        "    yield monkeypatch.setattr(ast, 'parse', parse)\n",
        encoding="utf-8",
    )
    (tmp_path / "test_failing.py").write_text(FAILING, encoding="utf-8")
    done = run_pytest(tmp_path)
    assert done.returncode == 1
    assert "AssertionError: the value" in done.stdout and "1 failed" in done.stdout
    assert "Log of worker" in done.stdout and len(done.stdout) < 20_000


def test_a_text_that_fits_is_left_as_it_is() -> None:
    text = "\n".join(str(number) for number in range(40))
    assert shortened(text) == text
    assert shortened(f"{text}\nthe last").splitlines()[-1] == "the last"
