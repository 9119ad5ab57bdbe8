"""The console script `lumigrad`, installed as `lumigrad.start`: a package whose import imports almost nothing."""

from __future__ import annotations

import signal


def main() -> int:
    """Runs the command line; returns the exit status. While the client is imported, Ctrl-C kills the process."""
    before = signal.getsignal(signal.SIGINT)
    # Ignored signals stay ignored.
    if callable(before):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from lumigrad.client.cli import main as run

    signal.signal(signal.SIGINT, before)
    return run()
