"""Workers start and serve whatever standard streams and file systems they are started with."""

from __future__ import annotations

import os
import signal
import subprocess

import psutil
import pytest

from support.calls.raw_calls import RawClient, sphere_cloud
from support.workers.worker import LUMIGRAD, worker


@pytest.mark.parametrize("closed", ["2>&-", "<&- 2>&-"])
def test_a_supervisor_without_standard_error_serves(closed: str) -> None:
    command = ("sh", "-c", f'exec {LUMIGRAD} serve "$@" {closed}', "sh")
    with worker("--device", "cpu", supervised=True, command=command) as process:
        client = RawClient(process.target)
        assert not client.put(sphere_cloud(1)).existed
        client.close()
        # Otherwise libraries would write their messages to whatever file or connection is opened next.
        for child in psutil.Process(process.process.pid).children():
            assert os.readlink(f"/proc/{child.pid}/fd/2") == os.devnull


@pytest.mark.parametrize("options", ["", "--no-supervisor"])
@pytest.mark.parametrize("output", [">&-", ">/dev/full", "| true"])
def test_a_worker_whose_announcement_nobody_takes_serves_and_stops(output: str, options: str) -> None:
    """Its exit code says that it drained, and its log has no error of the output."""
    serve = f"{LUMIGRAD} serve --device cpu --port 0 --metrics-port 0 --lame-duck-seconds 0 {options}"
    command = ["bash", "-c", f"{{ echo $BASHPID >&2; exec {serve}; }} {output}; exit ${{PIPESTATUS[0]}}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        pid, log = int(process.stderr.readline()), ""
        while " INFO serving " not in log:
            line = process.stderr.readline()
            assert line, f"it has ended: {log}"
            log += line
        os.kill(pid, signal.SIGTERM)
        log += process.stderr.read()
        assert (process.wait(60), "rror" in log) == (0, False), log
