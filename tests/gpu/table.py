"""The results of all steps in a folder as one text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.gpu.context import STARTED, read_json
from tests.gpu.profiling import REASONS

_KERNELS = 16
_CUT_OFF = "cut off"


def text(folder: Path, device: str) -> str:
    """The table in Markdown, without results that no step has written."""
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
            each = f", {many * rate:.0f} frames/s" if many > 1 else ""
            lane = f", lane {row['lane']}" if "lane" in row else ""
            clients = "1 client" if row["clients"] == 1 else f"{row['clients']} processes"
            yield f"| {name} | {clients}{lane}, {rate} calls/s{each} | {row['median_ms']} | | | |"
    yield from _others(found)
    for name, case in found.get("cases", {}).items():
        if "stages_ms" in case:
            stages = ", ".join(f"{stage} {taken}" for stage, taken in case["stages_ms"].items())
            yield f"- stages of {name}, ms: {stages}"


def _peers(found: dict[str, Any]) -> Iterator[str]:
    """Rows with ratios, which are above 1 if the peer takes longer."""
    yield "| peer | | latency, ms: ours / theirs | in a row, ms: ours / theirs | agrees |"
    yield "|---|---|---|---|---|"
    for name, case in found.get("cases", {}).items():
        for op, pair in case.get("ops", {}).items():
            agrees = "yes" if case["agrees"] else f"DIFFERS: {case['differences']}"
            cells = [
                f"{pair['ours'][f'{regime}_ms']} / {pair['theirs'][f'{regime}_ms']} = {ratio:.2f}x"
                for regime, ratio in pair["faster"].items()
            ]
            yield f"| {name} | {op} | {' | '.join(cells)} | {agrees} |"
    yield from _others(found)
    for name, status in found.get("packed", {}).items():
        yield f"- {name} of the pack: {status}"


def _others(found: dict[str, Any]) -> Iterator[str]:
    """The cases that did not finish, or have no times."""
    yield ""
    for name, case in found.get("cases", {}).items():
        if case["status"] != "ok" or "why" in case:
            yield f"- {name}: {_status(case)}" + (f": {case['why']}" if "why" in case else "")
        elif "compared" in case:
            yield f"- {name}: {case['compared']} tensors compared, all within the tolerance"
    yield from (f"    {line}" for line in found.get("failure", []))


def _status(part: dict[str, Any]) -> str:
    """The status of a part of a step, which may have been killed during the part."""
    return _CUT_OFF if part["status"] == STARTED else str(part["status"])


def _profile(found: dict[str, Any]) -> Iterator[str]:
    yield f"- {found.get('status', _CUT_OFF)}" + (f": {found['why']}" if "why" in found else "")
    kernels = dict(list(found.get("kernels", {}).items())[:_KERNELS])
    yield from _kernels(kernels, ("launches", "duration", "dram_pct", "l2_pct", "sm_pct", "occupancy_pct", "registers"))
    # Warps that wait for each reason while one instruction is issued.
    yield from _kernels({name: kernel["stalls"] for name, kernel in kernels.items()}, REASONS)


def _kernels(kernels: Mapping[str, Any], columns: Sequence[str]) -> Iterator[str]:
    if kernels:
        yield from ["", f"| kernel (duration in ns) | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name, counted in kernels.items():
        yield f"| {name[-90:]} | {' | '.join(f'{counted[column]:g}' for column in columns)} |"
