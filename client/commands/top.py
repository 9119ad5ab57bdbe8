"""`lumigrad top`: shows the activity of workers live in a terminal."""

from __future__ import annotations

import argparse
import os
import select
import signal
import ssl
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from functools import partial

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
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each report")
    add_connection(parser, 3.0)


def _run(arguments: argparse.Namespace) -> int:
    for module in ("rich", "prometheus_client"):
        require(module, "top", "lumigrad top")
    from rich.console import Console, Group

    from lumigrad.client.monitor.metrics import UNREACHABLE, Watch
    from lumigrad.client.monitor.screen import page

    watches = [Watch(*source) for source in _sources(arguments)]
    console = Console(highlight=False)
    is_live = console.is_terminal and not arguments.once and not arguments.json
    # The terminal is restored on this signal too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt), ThreadPoolExecutor(len(watches)) as pool, _keys() as wait:
        reports = list(pool.map(Watch.look, watches))
        if watches[0].error is not None and all(report["state"] == UNREACHABLE for report in reports):
            raise watches[0].error
        with console.screen() if is_live else nullcontext() as screen:
            while True:
                if screen is not None:
                    title = f"lumigrad top  every {arguments.interval:g} s, q ends  {time.strftime('%H:%M:%S')}"
                    screen.update(Group(title, page(reports, console.height - 1)))
                if wait(arguments.interval):
                    break
                reports = list(pool.map(Watch.look, watches))
                # The first poll, which covers a worker's whole life, is only shown on screen.
                if arguments.json:
                    print(json_text({"workers": reports}), flush=True)
                elif screen is None:
                    console.print(page(reports))
                if arguments.once:
                    break
    return 0


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


@contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Yields a function that waits for a time or a key and returns whether to end; keys are not echoed."""
    settings = termios.tcgetattr(sys.stdin) if sys.stdin.isatty() else None

    def wait(seconds: float) -> bool:
        if settings is None:
            time.sleep(seconds)
        elif select.select([sys.stdin], [], [], seconds)[0]:
            typed = os.read(sys.stdin.fileno(), 64)
            # Empty: end of input.
            return not typed or b"q" in typed
        return False

    try:
        if settings is not None:
            tty.setcbreak(sys.stdin)
        yield wait
    finally:
        if settings is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, settings)


command = Command("show the activity of workers, live", _add_arguments, _run)
