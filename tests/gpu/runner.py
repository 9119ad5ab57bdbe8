"""Runs the cases of a step, each as far as possible, in a process that is replaced after an error of the device.

The results of each case are written at once, so that a run that is cut off keeps those before.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gpu.context import OUT_OF_TIME, STARTED, Context, environment, python, read_json, write_json

_NOT_RUN = "not run"
# The device takes no more work of a process after an error.
_BROKEN = 3
CASE_SECONDS = 120.0
# The cases would import this module a second time under -m.
_CHILD = "import sys; from tests.gpu.runner import main; sys.exit(main())"


class NotHere(Exception):
    """Something that a case needs is not on this machine."""


@dataclass(frozen=True)
class Case:
    """A case; `run` takes the device and returns the measured values."""

    name: str
    run: Callable[[Any], dict[str, Any]]


def supervise(context: Context, step: str, module: str) -> dict[str, Any]:
    """Runs `module.cases()` in separate processes until all have been tried, or time is over."""
    file = context.out / f"{step}.json"
    write_json(file, {"device": context.device, "cases": {}})
    while True:
        tried = _tried(read_json(file))
        child = python(
            "-c", _CHILD, module, "--device", context.device, "--file", str(file),
            "--seconds", str(context.left()),
        )  # fmt: skip
        done = context.run(child, environment=environment())
        results = read_json(file)
        for result in results["cases"].values():
            if result["status"] == STARTED and done.code is None:
                result["status"] = OUT_OF_TIME
            elif result["status"] == STARTED:
                result |= {"status": f"ended the process: {done.status}", "output": done.tail()}
        if done.code is None or (done.code == 0 and context.left() == 0):
            _mark_rest(results)
        if not results["cases"]:
            results["failure"] = done.tail()
        write_json(file, results)
        if done.code in (0, None) or _tried(results) == tried:
            return results


def _tried(results: dict[str, Any]) -> int:
    return sum(result["status"] != _NOT_RUN for result in results["cases"].values())


def _mark_rest(results: dict[str, Any]) -> None:
    for result in results["cases"].values():
        if result["status"] == _NOT_RUN:
            result["status"] = OUT_OF_TIME


def run_cases(cases: list[Case], device: Any, file: Path, end: float) -> int:
    """Runs the cases that have not been tried; returns the exit status of the process."""
    results = read_json(file)
    for case in cases:
        results["cases"].setdefault(case.name, {"status": _NOT_RUN})
    for case in cases:
        if results["cases"][case.name]["status"] != _NOT_RUN:
            continue
        if time.monotonic() >= end:
            _mark_rest(results)
            break
        results["cases"][case.name] = {"status": STARTED}
        write_json(file, results)
        print(f"{case.name} ...", flush=True)
        start = time.monotonic()
        # Also ends the process while it waits for a kernel that hangs.
        faulthandler.dump_traceback_later(CASE_SECONDS, exit=True)
        result = _result(case, device)
        faulthandler.cancel_dump_traceback_later()
        results["cases"][case.name] = {**result, "seconds": round(time.monotonic() - start, 1)}
        write_json(file, results)
        print(f"{case.name}: {result['status']}", flush=True)
        if result["status"] == "failed" and not _works(device):
            return _BROKEN
    write_json(file, results)
    return 0


def _result(case: Case, device: Any) -> dict[str, Any]:
    try:
        return {"status": "ok", **case.run(device)}
    except (NotHere, ModuleNotFoundError) as error:
        return {"status": "not here", "why": str(error)}
    except Exception as error:
        traceback.print_exc()
        return {"status": "failed", "why": f"{type(error).__name__}: {error}"[:2000]}


def _works(device: Any) -> bool:
    try:
        device.synchronize()
    except Exception:
        return False
    return True


def main() -> int:
    """Runs cases in this process; their module also has the `Device`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("module")
    parser.add_argument("--device", required=True)
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    arguments = parser.parse_args()
    end = time.monotonic() + arguments.seconds
    module = importlib.import_module(arguments.module)
    device = module.Device(arguments.device)
    with device.engines():
        return run_cases(module.cases(device), device, arguments.file, end)
