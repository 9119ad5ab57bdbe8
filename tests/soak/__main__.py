"""A soak: `python -m tests.soak --minutes 30` from the root of the repository, or `make soak`.

A worker under a supervisor, with a spool, gets all kinds of calls at a fixed rate, while workers are killed and
drained, connections break, readers stop, and one of three tenants attacks the others. After each window of load all
activity ends, and the program measures what the worker, its supervisor and the clients (this process) hold. It fails,
with code 1, if any of that grows, if a reply is not bit for bit what it was before, or if a call of the other tenants
fails that may be repeated.
"""

from __future__ import annotations

import argparse
import json
import random
import secrets
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from support.calls.raw_calls import sphere_cloud
from support.fault_proxy import FaultProxy
from support.workers.tenant import tenant_client
from tests.soak.attacks import Attacks
from tests.soak.calls import Calls
from tests.soak.course import Course, Window
from tests.soak.logged_worker import LoggedWorker
from tests.soak.mishaps import Mishaps
from tests.soak.report import QUANTILES, report
from tests.soak.sample import hold_little
from tests.soak.tally import Tally
from tests.soak.verdict import trends

RESULTS = Path("build/bench/soak.json")
# Anything that cancelled calls leave behind is gone at rest, and a worker's death is forgotten at once.
_OPTIONS = (
    *("--context-seconds", "2", "--training-seconds", "2", "--stall-seconds", "20"),
    *("--lame-duck-seconds", "0.5", "--crash-seconds", "0.1"),
    # A limit that the flood of scenes soon reaches.
    *("--max-scenes", "300"),
)


def main() -> int:
    """Runs the soak, prints progress and tables, writes the results; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="of all windows together (default: 30)")
    parser.add_argument("--window-seconds", type=float, default=15.0, help="of load in a window (default: 15)")
    parser.add_argument("--rate", type=float, default=15.0, help="calls per second (default: 15)")
    parser.add_argument("--seed", type=int, default=0, help="of what happens when (default: 0)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of results (default: %(default)s)")
    arguments = parser.parse_args()
    random.seed(arguments.seed)
    hold_little()
    tally, windows = Tally(), list[Window]()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        spool, log = Path(folder) / "spool", arguments.out.with_suffix(".log")
        tokens = {name: secrets.token_hex() for name in ("user", "trainer", "attacker")}
        file = Path(folder) / "tokens"
        file.write_text("".join(f"{name}: {token}\n" for name, token in tokens.items()), encoding="utf-8")
        options = ("--spool", str(spool), "--tokens-file", str(file), *_OPTIONS)
        with LoggedWorker(log, *options) as process, FaultProxy(process.target) as proxy:
            with process.channel() as channel:
                scene_id = tenant_client(channel, tokens["user"]).put(sphere_cloud(5)).scene.scene_id
            with Calls(process.target, proxy.target, (tokens["user"], tokens["trainer"]), tally) as calls:
                mishaps = Mishaps(process, proxy, scene_id, tokens["user"])
                attacks = Attacks(process.target, tokens["attacker"], mishaps.count, arguments.seed)
                course = Course(
                    process, proxy, calls, mishaps, attacks, tally, spool, arguments.window_seconds, arguments.rate
                )
                for window in course.windows(60 * arguments.minutes):
                    windows.append(window)
                    print(progress(window), flush=True)
    found = trends(windows)
    is_good = not tally.failed and all(trend.is_good for trend in found)
    print(report(found, tally, mishaps.count, course.probes, is_good=is_good))
    results = {
        "good": is_good,
        "faults": mishaps.count,
        "calls": tally.as_dict(),
        "small_render_s": {name: course.probes.quantile(share) for name, share in QUANTILES.items()},
        "trends": [asdict(trend) for trend in found],
        "windows": [asdict(window) for window in windows],
    }
    arguments.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(f"\nwrote {arguments.out}")
    return 0 if is_good else 1


def progress(window: Window) -> str:
    held = [
        f"{name} {held.rss_mib:.0f} MiB {held.descriptors} fds {held.threads} threads {held.memfds} memfds"
        for name, held in (("worker", window.worker), ("client", window.client))
    ]
    return (
        f"{window.seconds:6.0f} s {window.calls:4d} calls; pid {window.worker.pid}; {'; '.join(held)}; "
        f"spool {window.spool_files} files {window.spool_mib:.1f} MiB; {window.scenes} scenes"
    )


if __name__ == "__main__":
    sys.exit(main())
