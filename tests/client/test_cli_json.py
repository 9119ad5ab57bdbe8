"""What commands print for scripts: one line of JSON on standard output, with keys that stay, and nothing else there."""

from __future__ import annotations

import json
import re
from pathlib import Path

from lumigrad.client.shell.exits import json_text
from support.workers.forks import lumigrad
from support.workers.worker import WorkerProcess

DOCUMENT = Path(__file__).parents[2] / "docs" / "command_line.md"


def told(*arguments: str, cwd: Path | None = None) -> dict[str, object]:
    done = lumigrad(*arguments, "--json", folder=cwd)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    values = json.loads(line)
    assert isinstance(values, dict)
    return values


def documented(command: str) -> set[str]:
    """The keys in the document's table."""
    (row,) = re.findall(rf"^\| `lumigrad {command}` \| (.*) \|$", DOCUMENT.read_text(encoding="utf-8"), re.M)
    return set(re.findall(r"`([a-z_]+)`", row))


def test_render(worker_process: WorkerProcess, scene: Path):
    options = ("--orbit", "2", "--size", "16x16", "--show", "alpha", "--target", worker_process.target)
    values = told("render", "scene.ply", "-o", "frames/", *options, cwd=scene.parent)
    assert set(values) == documented("render")
    assert values["round_trip_ms"] > 0
    del values["round_trip_ms"]
    assert values == {"output": "frames", "show": "alpha", "kind": "gaussians", "count": 400, "pictures": 2}


def test_info(worker_process: WorkerProcess):
    values = told("info", "--target", worker_process.target)
    assert set(values) == documented("info")
    assert values["lane"] in ("shared", "stream")


def test_top(worker_process: WorkerProcess):
    values = told("top", worker_process.target, "--once", "--interval", "0.1")
    assert {"workers", *values["workers"][0]} == documented("top")


def test_numbers_that_json_does_not_know_are_null():
    assert json_text({"a": (float("nan"), float("inf"), 1.5)}) == '{"a": [null, null, 1.5]}'
