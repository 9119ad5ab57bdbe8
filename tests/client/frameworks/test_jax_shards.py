"""JAX functions on several devices at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from support.workers.worker import WorkerProcess

pytest.importorskip("jax", reason="needs the extra jax")

TESTS = Path(__file__).parents[2]
PROGRAM = TESTS / "support" / "jax_shards.py"


def test_gradients_of_what_devices_share_are_summed(worker_process: WorkerProcess):
    """Runs in its own process, since JAX counts its devices when it starts."""
    environment = {
        **os.environ,
        "LUMIGRAD_TARGET": worker_process.target,
        "PYTHONPATH": str(TESTS),
        "XLA_FLAGS": "--xla_force_host_platform_device_count=3",
    }
    done = subprocess.run([sys.executable, PROGRAM], capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stderr
    for name, ways in json.loads(done.stdout).items():
        for way, pair in ways.items():
            for found, expected in zip(*pair, strict=True):
                size = np.abs(expected).max()
                assert size > 0
                np.testing.assert_allclose(found / size, expected / size, atol=1e-5, err_msg=f"{name}, {way}")
