"""The results of all steps in a folder as one text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.gpu.context import STARTED, read_json

_KERNELS = 16
_CUT_OFF = "cut off"


def text(folder: Path, device: str) -> str:
    """In Markdown; what a step has not written is not in it."""
    steps = {step: read_json(folder / f"{step}.json") for step in ("build", "test", "bench", "peers", "profile")}
    lines = [f"# {_title(steps['build'], device)}", ""]
    for step, show in (("build", _build), ("test", _test), ("bench", _bench), ("peers", _peers), ("profile", _profile)):
        if steps[step]:
            lines += [f"## {step}", "", *show(steps[step]), ""]
    return "\n".join(lines)


def _title(build: dict[str, Any], device: str) -> str:
    gpu, machine = build.get("gpu", {}), build.get("machine", {})
    if device != "cuda":
        return "DRY RUN in the emulation, at tiny sizes whatever the names say: these times say nothing about any GPU"
    return f"{gpu.get('name', 'unknown GPU')}, driver {gpu.get('driver', 'unknown')}, {machine.get('date', 'no date')}"


def _build(found: dict[str, Any]) -> Iterator[str]:
    gpu = found.get("gpu", {})
    yield f"- {found.get('status', _CUT_OFF)}; torch {gpu.get('torch')}, CUDA {gpu.get('torch_cuda')}"
    yield f"- copies on the device, bytes read and written: {gpu.get('copy_gb_per_s')} GB/s"
    for name, what in found.get("site", {}).items():
        yield f"- {name}: {what}"
    for name, step in found.get("steps", {}).items():
        yield f"- {name}: {step['status']}, {step['seconds']} s"
    yield from (f"    {line}" for line in found.get("errors", [])[:10])


def _test(found: dict[str, Any]) -> Iterator[str]:
    for part, tests in found.get("tests", {}).items():
        counts = ", ".join(f"{tests[name]} {name}" for name in ("passed", "failed", "skipped") if name in tests)
        yield f"- tests of the {part}: {_status(tests)}; {counts or 'no counts'}"
        yield from (f"    - {name}" for name in tests.get("failures", [])[:20])
    for tool, result in found.get("sanitizer", {}).items():
        yield f"- {tool}: {_status(result)}" + (f": {result['why']}" if "why" in result else "")


def _bench(found: dict[str, Any]) -> Iterator[str]:
    yield from ["| case | | median ms | p99 ms | host ms | runs |", "|---|---|---|---|---|---|"]
    for name, case in found.get("cases", {}).items():
        for op, times in case.get("ops", {}).items():
            yield f"| {name} | {op} | {times['median_ms']} | {times['p99_ms']} | {times['host_ms']} | {times['runs']} |"
        for row in case.get("formats", []):
            size = f"{row['payload_bytes'] / 1e6:.1f} MB"
            yield f"| {name} | {row['format']}, {size} | {row['median_ms']:.2f} | | | {row['runs']} |"
        for row in case.get("clients", []):
            many, rate = row.get("frames_per_call", 1), row["calls_per_s"]
            each = f", {many * rate:.0f} frames/s by lane {row['lane']}" if many > 1 else ""
            clients = "1 client" if row["clients"] == 1 else f"{row['clients']} clients"
            yield f"| {name} | {clients}, {rate} calls/s{each} | {row['median_ms']} | | | |"
    yield from _others(found)
    for name, case in found.get("cases", {}).items():
        if "stages_ms" in case:
            stages = ", ".join(f"{stage} {taken}" for stage, taken in case["stages_ms"].items())
            yield f"- stages of {name}, ms: {stages}"


def _peers(found: dict[str, Any]) -> Iterator[str]:
    yield from ["| peer | | ours ms | theirs ms | faster | agrees |", "|---|---|---|---|---|---|"]
    for name, case in found.get("cases", {}).items():
        for op, pair in case.get("ops", {}).items():
            agrees = "yes" if case["agrees"] else f"DIFFERS: {case['differences']}"
            ours, theirs = pair["ours"]["median_ms"], pair["theirs"]["median_ms"]
            yield f"| {name} | {op} | {ours} | {theirs} | {pair['faster']}x | {agrees} |"
    yield from _others(found)
    for name, result in found.get("built", {}).items():
        yield f"- building {name}: {result['status']}, {result['seconds']} s"


def _others(found: dict[str, Any]) -> Iterator[str]:
    """The cases that did not get to their end, or have no times."""
    yield ""
    for name, case in found.get("cases", {}).items():
        if case["status"] != "ok":
            yield f"- {name}: {_status(case)}" + (f": {case['why']}" if "why" in case else "")
        elif "compared" in case:
            yield f"- {name}: {case['compared']} tensors compared, all within the tolerance"
    yield from (f"    {line}" for line in found.get("failure", []))


def _status(part: dict[str, Any]) -> str:
    """Of a part of a step, which may have been killed in it."""
    return _CUT_OFF if part["status"] == STARTED else str(part["status"])


def _profile(found: dict[str, Any]) -> Iterator[str]:
    yield f"- {found.get('status', _CUT_OFF)}" + (f": {found['why']}" if "why" in found else "")
    if found.get("kernels"):
        columns = ("launches", "duration", "dram_pct", "l2_pct", "sm_pct", "occupancy_pct", "registers")
        yield from ["", f"| kernel (duration in ns) | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
        for name, kernel in list(found["kernels"].items())[:_KERNELS]:
            yield f"| {name[-90:]} | {' | '.join(f'{kernel[column]:g}' for column in columns)} |"
