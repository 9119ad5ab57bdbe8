"""Workers start and serve whatever standard streams and file systems they are started with."""

from __future__ import annotations

import os

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
