"""Runs the steps of `make gpu`, and prints their results as one table.

python3 -m tests.gpu                        all of them
python3 -m tests.gpu bench --budget 300     one, which has all of the time
python3 -m tests.gpu table --out FOLDER     the table of what is in a folder

If the environment variable OUT names another folder, small results are also copied there as soon as they are written.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from tests.gpu.context import BUILD, PACK, ROOT, Context, copy, read_json
from tests.gpu.table import text

# The part of the remaining time that each step may take when its turn comes; time that it leaves is for later steps.
SHARES = {"build": 0.45, "test": 0.4, "bench": 0.55, "peers": 0.5, "profile": 1.0}
_SMALL = (".json", ".md", ".csv")
MODULES = {"build": "build", "test": "checks", "bench": "bench", "peers": "peers", "profile": "profiling"}


def main() -> int:
    """Runs the given steps; returns 1 if a step did not end well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", metavar="STEP", help=", ".join([*SHARES, "table"]))
    parser.add_argument("--budget", type=float, default=480.0, help="seconds for all steps together (default: 480)")
    parser.add_argument(
        "--out", type=Path, default=BUILD, help=f"folder of results (default: {BUILD.relative_to(ROOT)})"
    )
    parser.add_argument("--device", choices=("cuda", "emulation"), default="cuda", help="emulation: a dry run")
    arguments = parser.parse_args()
    unknown = [step for step in arguments.steps if step not in (*SHARES, "table")]
    if unknown:
        parser.error(f"unknown step {unknown[0]!r}; expected one of {', '.join([*SHARES, 'table'])}")
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    _prepare_environment()
    steps = [step for step in arguments.steps or SHARES if step != "table"]
    deadline = time.monotonic() + arguments.budget
    try:
        ended = [_run(step, _context(step, steps, arguments.device, out, deadline)) for step in steps]
    finally:
        table = text(out, arguments.device)
        (out / "table.md").write_text(table, encoding="utf-8")
        for file in sorted(path for path in out.iterdir() if path.suffix in _SMALL):
            copy(file)
        is_whole = not arguments.steps or "table" in arguments.steps
        print(table if is_whole else f"the results so far are in {out / 'table.md'}", flush=True)
    return 0 if all(ended) else 1


def _prepare_environment() -> None:
    # Running commands end with this process.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    if os.environ.get("OUT"):
        copies = Path(os.environ["OUT"]).resolve()
        copies.mkdir(parents=True, exist_ok=True)
        os.environ["OUT"] = str(copies)
    # The toolkit is searched here if its tools are not found on PATH.
    os.environ["PATH"] += f"{os.pathsep}/usr/local/cuda/bin"
    # The captured scenes of the benchmarks are in the pack.
    os.environ.setdefault("LUMIGRAD_TEST_DATA", str(PACK))


def _context(step: str, steps: list[str], device: str, out: Path, deadline: float) -> Context:
    left = deadline - time.monotonic()
    share = 1.0 if step == steps[-1] else SHARES[step]
    return Context(device, out, time.monotonic() + max(0.0, share * left))


def _run(step: str, context: Context) -> bool:
    """Runs a step, writes its results, and returns whether it ended well."""
    start, budget = time.monotonic(), context.left()
    print(f"{step}: at most {budget:.0f} s ...", file=sys.stderr, flush=True)
    (context.out / f"{step}.json").unlink(missing_ok=True)
    try:
        found: dict[str, Any] = importlib.import_module(f"tests.gpu.{MODULES[step]}").run(context)
    except Exception as error:
        traceback.print_exc()
        found = {**read_json(context.out / f"{step}.json"), "status": f"{type(error).__name__}: {error}"}
    seconds = time.monotonic() - start
    found = {
        "status": _worst(found),
        **found,
        "device": context.device,
        "seconds": round(seconds, 1),
        "budget": round(budget, 1),
    }
    context.write(step, found)
    print(f"{step}: {found['status']}, {seconds:.0f} s", file=sys.stderr, flush=True)
    return found["status"] in ("ok", "not here")


def _worst(found: dict[str, Any]) -> str:
    """The worst status of a step's cases, if the step has none of its own."""
    bad = [
        f"{name}: {case['status']}"
        for name, case in found.get("cases", {}).items()
        if case["status"] not in ("ok", "not here")
    ]
    if "failure" in found:
        return "the cases could not be started"
    return f"{len(bad)} cases not done, first {bad[0]}" if bad else "ok"


if __name__ == "__main__":
    sys.exit(main())
