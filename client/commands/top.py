"""`lumigrad top`: what workers are doing, live in a terminal."""

from __future__ import annotations

import argparse
import signal
import ssl
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from lumigrad.client.channel import resolve_tls
from lumigrad.client.commands.options import add_connection, connect_to, positive_number, tls_of
from lumigrad.client.extras import require
from lumigrad.client.monitor.keys import Keys
from lumigrad.client.monitor.report import UNREACHABLE, Report
from lumigrad.client.monitor.source import Source
from lumigrad.client.monitor.watch import Watch
from lumigrad.client.shell.json_text import json_text
from lumigrad.client.targets import Targets
from lumigrad.client.worker_info import WorkerInfo

_ASK_SECONDS = 3.0
_EXAMPLES = """\
examples:
  lumigrad top                                  the worker of LUMIGRAD_TARGET, else localhost:50051
  lumigrad top gpu-1:50051 gpu-2:50051          several, a line each
  lumigrad top http://gpu-1:9464/metrics        without asking the worker where its metrics are
  lumigrad top --once --json | jq .             one look, for scripts
"""


class TopCommand:
    """Shows workers by their metrics, again and again."""

    help = "show live what workers are doing"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        parser.epilog = _EXAMPLES
        parser.add_argument(
            "targets", nargs="*", metavar="WORKER", help="HOST:PORT, or the URL of its metrics (default: --target)"
        )
        parser.add_argument(
            "--interval", type=positive_number, default=2.0, metavar="SECONDS", help="between looks (default: 2)"
        )
        parser.add_argument("--once", action="store_true", help="look once, over one interval, and end")
        parser.add_argument("--json", action="store_true", help="print a line of JSON for each look")
        add_connection(parser.add_argument_group("worker"), _ASK_SECONDS)

    def run(self, arguments: argparse.Namespace) -> int:
        """Shows them until q or Control-C."""
        watches = [Watch(_source(target, arguments)) for target in _workers(arguments.targets or [arguments.target])]
        with ThreadPoolExecutor(len(watches)) as pool:
            looks = _looks(watches, pool)
            first = next(looks)
            if watches[0].error is not None and all(report.state == UNREACHABLE for report in first):
                raise watches[0].error
            try:
                if arguments.json:
                    _print_json(first, looks, arguments)
                else:
                    _show(first, looks, arguments)
            except KeyboardInterrupt:
                # The way to end it.
                pass
        return 0


def _looks(watches: Sequence[Watch], pool: ThreadPoolExecutor) -> Iterator[list[Report]]:
    while True:
        yield list(pool.map(Watch.look, watches))


def _workers(named: Sequence[str | None]) -> list[str]:
    """The URLs and each worker, in their order; of a name that stands for several, those that it does now."""
    return [
        worker
        for name in named
        for worker in ((name,) if name and "://" in name else [address.target for address in Targets(name).addresses()])
    ]


def _source(target: str, arguments: argparse.Namespace) -> Source:
    def ask() -> WorkerInfo:
        with connect_to(target, arguments, 0.0) as client:
            return client.info()

    trusted = resolve_tls(tls_of(arguments))
    tls = ssl.create_default_context(cafile=None if isinstance(trusted, bool) else trusted)
    if arguments.certificate:
        tls.load_cert_chain(*arguments.certificate)
    return Source(target, ask, tls)


def _print_json(first: list[Report], looks: Iterator[list[Report]], arguments: argparse.Namespace) -> None:
    with Keys() as keys:
        # What the first look tells is of the worker's whole life.
        while not keys.wait(arguments.interval):
            print(json_text({"workers": next(looks)}), flush=True)
            if arguments.once:
                return


def _show(first: list[Report], looks: Iterator[list[Report]], arguments: argparse.Namespace) -> None:
    require("rich", "top", "lumigrad top")
    from lumigrad.client.monitor.display import Display

    # Whoever ends it so gets the terminal back too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    display = Display(arguments.interval, once=arguments.once)
    with Keys() as keys, display:
        if not arguments.once:
            display.show(first)
        while not keys.wait(arguments.interval):
            display.show(next(looks))
            if arguments.once:
                return


command = TopCommand()
