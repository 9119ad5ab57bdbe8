"""Interrupts that fall into finalizers reach the main thread nevertheless."""

from __future__ import annotations

import signal
import subprocess
import sys

# The main thread begins to wait at once, so that only a signal can wake it.
WAITS = """
import os, signal, sys, threading
from lumigrad.client.shell.exits import exit_code, terminable
from lumigrad.protos.finalizers import finalize

class Owner:
    pass

number, ignored = int(sys.argv[1]), int(sys.argv[2])
signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.default_int_handler)
late = threading.Event()
threading.Timer(60, late.set).start()
code = None
try:
    with terminable():
        owner = Owner()
        finalize(owner, signal.raise_signal, number)
        del owner
        late.wait()
except KeyboardInterrupt as interrupt:
    code = exit_code(interrupt)
print(code, late.is_set(), flush=True)
os._exit(0)
"""


def ended(number: signal.Signals, *, ignored: bool) -> str:
    command = [sys.executable, "-c", WAITS, str(int(number)), str(int(ignored))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.stderr == ""
    return done.stdout.strip()


def test_an_interrupt_wakes_a_main_thread_that_waits() -> None:
    assert ended(signal.SIGINT, ignored=False) == "130 False"


def test_a_termination_stays_one_also_where_interrupts_are_ignored() -> None:
    """A shell has SIGINT ignored by what it runs in the background."""
    assert ended(signal.SIGTERM, ignored=False) == "143 False"
    assert ended(signal.SIGTERM, ignored=True) == "143 False"
