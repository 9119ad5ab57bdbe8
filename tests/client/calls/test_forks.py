"""Clients in processes that were forked after the client had been used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.workers import used_forks
from support.workers.worker import WorkerProcess, worker_fixture

process = worker_fixture()


def run(module: str, *arguments: str, **environment: str) -> None:
    """Runs a program that forks. The tests' own process must not fork, since libraries have threads in it."""
    tests = Path(__file__).parents[2]
    command = [sys.executable, "-m", f"support.workers.{module}", *arguments]
    done = subprocess.run(
        command, cwd=tests, env={**os.environ, **environment}, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("case", list(used_forks.CASES))
def test_a_client_that_was_used_goes_on_in_a_child(process: WorkerProcess, case: str) -> None:
    run("used_forks", case, process.target)


def test_a_child_of_a_process_with_calls_under_way_says_so(process: WorkerProcess) -> None:
    # gRPC's own handling of forks would end some of the children, see docs/operations/shared_memory.md.
    run("busy_forks", process.target, GRPC_ENABLE_FORK_SUPPORT="0")
