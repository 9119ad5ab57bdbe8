"""The console script `lumigrad`, installed as `lumigrad.start`: a package that imports nothing when it is imported."""

from __future__ import annotations

import signal


def main() -> int:
    """Runs the command line; returns the exit status. Ctrl-C ends the process itself while the client is imported."""
    before = signal.getsignal(signal.SIGINT)
    # Signals that are ignored stay so.
    if callable(before):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from lumigrad.client.cli import main as run

    signal.signal(signal.SIGINT, before)
    return run()
