"""`lumigrad top`: prints the activity of workers, a line of text or of JSON for each interval."""

from __future__ import annotations

import argparse
import math
import signal
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

from lumigrad.client.base.extras import require
from lumigrad.client.commands.options import SECONDS, add_connection, connect, option, tls_of
from lumigrad.client.shell.catalog import Command
from lumigrad.client.shell.exits import json_text
from lumigrad.client.transport.addresses import Targets
from lumigrad.client.transport.channel import resolve_tls

_EXAMPLES = """\
examples:
  lumigrad top                                  the worker of LUMIGRAD_TARGET, else localhost:50051
  lumigrad top gpu-1:50051 gpu-2:50051          several, a line each
  lumigrad top http://gpu-1:9464/metrics        without asking the worker where its metrics are
  lumigrad top --once --json | jq .             one report, for scripts
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    help_text = "HOST:PORT, or the URL of its metrics (default: --target)"
    parser.add_argument("targets", nargs="*", metavar="WORKER", help=help_text)
    option(parser, "--interval", "time between reports", 2.0, **SECONDS)
    parser.add_argument("--once", action="store_true", help="print one report, over one interval, and exit")
    parser.add_argument("--json", action="store_true", help="print a line of JSON, with all numbers, for each report")
    add_connection(parser, 3.0)


def _run(arguments: argparse.Namespace) -> int:
    require("prometheus_client", "top", "lumigrad top")
    from lumigrad.client.monitor.metrics import UNREACHABLE, Watch

    watches = [Watch(*source) for source in _sources(arguments)]
    # A process manager ends it as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt), ThreadPoolExecutor(len(watches)) as pool:
        # The first poll covers a worker's whole life, so that its rates are not shown.
        reports = list(pool.map(Watch.look, watches))
        if watches[0].error is not None and all(report["state"] == UNREACHABLE for report in reports):
            raise watches[0].error
        if not arguments.json:
            print(_HEADER, flush=True)
        while True:
            time.sleep(arguments.interval)
            reports = list(pool.map(Watch.look, watches))
            lines = [json_text({"workers": reports})] if arguments.json else map(_line, reports)
            print("\n".join(lines), flush=True)
            if arguments.once:
                break
    return 0


_COLUMNS = "{:<28} {:<11} {:>9} {:>8} {:>7} {:>6} {:>5}"
_HEADER = _COLUMNS.format("worker", "state", "up", "calls/s", "p95 ms", "queue", "busy")


def _line(report: Mapping[str, Any]) -> str:
    """A report in 80 columns, or what is wrong with its worker."""
    name, state, load = report["target"].rpartition("://")[2], report["state"], report["load"]
    if report["why"]:
        return f"{name:<28} {state} for {timedelta(seconds=int(report['since_s']))}: {report['why']}"
    up = str(timedelta(seconds=int(report["identity"]["uptime_s"]))).replace(" days, ", "d").replace(" day, ", "d")
    p95 = "-" if math.isnan(load["p95_ms"]) else f"{load['p95_ms']:.1f}"
    rates = f"{load['calls_per_s']:.1f}", p95, load["queue_depth"], f"{load['device_busy']:.0%}"
    line = _COLUMNS.format(name, state, up, *rates)
    if report["restarted_s"] is None or report["restarted_s"] > report["interval_s"]:
        return line
    return f"{line}\n{name:<28} restarted; the one before ended: {report['identity']['last_exit']}"


def _sources(arguments: argparse.Namespace) -> Iterator[tuple[str, Callable[[], str | None], ssl.SSLContext]]:
    """Yields each worker's name, a function that returns the URL of its metrics, and the TLS settings."""
    trusted = resolve_tls(tls_of(arguments))
    tls = ssl.create_default_context(cafile=None if isinstance(trusted, bool) else trusted)
    if arguments.certificate:
        tls.load_cert_chain(*arguments.certificate)

    def ask(target: str) -> str | None:
        with connect(arguments, target=target, retry_s=0.0) as client:
            return client.info().metrics_url

    for name in arguments.targets or [arguments.target]:
        # A name may resolve to several workers.
        for target in [name] if name and "://" in name else [it.target for it in Targets(name).addresses()]:
            yield target, partial(ask, target), tls


command = Command("print the activity of workers as it happens", _add_arguments, _run)
