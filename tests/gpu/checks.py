"""gpu-test: the kernels' tests on the GPU, and small cases with compute-sanitizer."""

from __future__ import annotations

import importlib.util
import os
import shutil
from typing import Any

from tests.gpu.context import OUT_OF_TIME, STARTED, Context, environment, python, read_json
from tests.gpu.server_cases import NEEDED

# Imported modules, part of the remaining time, the tests, and a few tests for the emulation.
_TESTS = {
    "kernels": (
        ["pytest"],
        0.6,
        ["-m", "gpu", "tests/kernels"],
        ["-k", "emulation", "tests/kernels/training/test_cuda.py"],
    ),
    "server": (
        ["pytest", *NEEDED],
        0.4,
        ["-m", "gpu", "tests/server/test_cuda.py", "tests/server/device/test_gpu_jpegs.py"],
        ["tests/server/device/test_batches.py", "-k", "sphere_asks"],
    ),
}
_SANITIZER_TOOLS = ("memcheck", "racecheck", "synccheck")
_FOUND_ERRORS = 86
# Tools that would also check torch's kernels without a filter, and the names of that option in several versions.
_FILTERED = ("racecheck", "synccheck")
_FILTERS = ("--kernel-regex", "--kernel-name", "--filter")


def run(context: Context) -> dict[str, Any]:
    """Runs the tests, then the sanitizer's tools one after another."""
    results: dict[str, Any] = {"tests": {}, "sanitizer": {}}
    for name, (needed, share, chosen, few) in _TESTS.items():
        imported = context.run(python("-c", f"import {', '.join(needed)}"), environment=environment())
        if imported.code == 0:
            results["tests"][name] = {"status": STARTED}
            context.write("test", results)
            results["tests"][name] = _tests(context, name, share, few if context.emulated else chosen)
        else:
            results["tests"][name] = {"status": "not here", "why": imported.tail(1)}
        context.write("test", results)
    for tool in _SANITIZER_TOOLS:
        results["sanitizer"][tool] = {"status": STARTED}
        context.write("test", results)
        results["sanitizer"][tool] = _sanitized(context, tool)
        context.write("test", results)
    several = [*results["tests"].values(), *results["sanitizer"].values()]
    ok = all(result["status"] in ("ok", "not here") for result in several)
    return {**results, "status": "ok" if ok else "see tests and sanitizer"}


def _tests(context: Context, part: str, share: float, chosen: list[str]) -> dict[str, Any]:
    file = context.out / "test.json"
    report = ["-p", "tests.gpu.reports", f"--results={file}", f"--part={part}"]
    command = python("-m", "pytest", "-q", "-p", "no:cacheprovider", *report, *_options(), *chosen)
    done = context.run(command, limit=share * context.left(), environment=environment())
    found = {**read_json(file)["tests"][part], "status": done.status, "seconds": done.seconds}
    return found if done.code == 0 else {**found, "output": done.tail(60)}


def _options() -> list[str]:
    """Several processes if pytest-xdist is installed, since computing the references takes most of the time."""
    processes = min(8, len(os.sched_getaffinity(0)) // 2)
    several = processes > 1 and importlib.util.find_spec("xdist") is not None
    return ["-n", str(processes), "--dist", "loadfile"] if several else []


def _sanitized(context: Context, tool: str) -> dict[str, Any]:
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        return {"status": "not here", "why": "no compute-sanitizer"}
    if context.left() == 0:
        return {"status": OUT_OF_TIME}
    program = python("-m", "tests.gpu.oracles", "--device", context.device)
    # Each tensor gets its own memory, so that accesses beyond its end are found.
    uncached = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    ours = _ours(context, sanitizer) if tool in _FILTERED else []
    command = [sanitizer, "--tool", tool, "--error-exitcode", str(_FOUND_ERRORS), *ours, *program]
    done = context.run(command, environment={**environment(), **uncached})
    found = {"status": "found errors" if done.code == _FOUND_ERRORS else done.status, "seconds": done.seconds}
    return (
        found
        if done.code == 0
        else {**found, "output": [line for line in done.tail(200) if "===" in line][:80] or done.tail()}
    )


def _ours(context: Context, sanitizer: str) -> list[str]:
    """The option that checks only kernels whose names contain the project's."""
    told = context.run([sanitizer, "--help"], limit=20.0).output
    name = next((name for name in _FILTERS if name in told), None)
    return [name, "kns=lumigrad"] if name else []
