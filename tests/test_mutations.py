"""Prerequisites of `make mutations` and the sanitizers, which run too rarely to notice early that code has changed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lumigrad.kernels import _native
from tests.mutations.__main__ import ROOT, mutations


def test_every_fault_can_be_planted_and_looked_for() -> None:
    faults = mutations()
    assert len({fault.name for fault in faults}) == len(faults) >= 40
    for fault in faults:
        assert fault.after != fault.before
        assert all((ROOT / test.split("::")[0]).exists() for test in fault.tests), fault.name


IN_THIS_PROCESS = """
import support.backends.native
from lumigrad.kernels import _native, errors
print(_native.__file__, errors.Stopped is _native.Stopped)
"""
IN_A_WORKER = """
from support.workers.forks import ForkedProcess
told = "from lumigrad.kernels import _native, errors; print(_native.__file__, errors.Stopped is _native.Stopped)"
process = ForkedProcess(["--version"], before=[told])
print(*process.stdout.read().split()[:2])
"""


@pytest.mark.parametrize("program", [IN_THIS_PROCESS, IN_A_WORKER])
def test_another_build_of_the_native_module_can_be_tested(tmp_path: Path, program: str) -> None:
    build = Path(shutil.copy(_native.__file__, tmp_path))
    completed = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "LUMIGRAD_TEST_NATIVE": str(tmp_path), "PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert completed.stdout.split() == [str(build), "True"], completed.stderr
