"""Exceptions raised by signal handlers, such as Ctrl-C, while gRPC starts a call: the client can still be closed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.workers.worker import worker

ROUNDS = 12
# gRPC would wait forever for a lock that the exception has left locked.
LONGEST_CLOSE_SECONDS = 90.0
# Interrupts one call of each round at some point, then closes the client, while the exception is handled or later.
# Prints the longest time that closing took.
PROGRAM = """
import faulthandler, os, random, signal, sys, time
from lumigrad.client import Client

def interrupt(*_):
    raise KeyboardInterrupt

def interrupted(call):
    until = time.monotonic() + 1
    signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-4, 5e-3))
    while not ignored and time.monotonic() < until:
        call()
    raise KeyboardInterrupt

def is_interrupt(error):
    # Within threading.Condition.wait the exception can become a RuntimeError about the lock of the condition.
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None

def closing_seconds(client):
    began = time.monotonic()
    client.close()
    return time.monotonic() - began

target, kind, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
signal.signal(signal.SIGALRM, interrupt)
faulthandler.dump_traceback_later(200, exit=True)
random.seed(1)
longest = 0.0
# An exception in a destructor is ignored, and one that a library catches is as if there had been none.
ignored = []
sys.unraisablehook = ignored.append
# Calls, clients and exceptions, which hold calls: gRPC ends calls that nobody holds, and where the exception has left
# the lock of one locked, its destructor waits for ever.
kept = []
for _ in range(rounds):
    client = Client(target)
    kept.append(client)
    client.info()
    (worker,) = client._workers.members()
    stream = worker.connection.channel.stream_stream("/lumigrad.v1.RenderService/Render")
    call = client.info if kind == "unary" else lambda: kept.append(stream(iter(()), timeout=5))
    ignored.clear()
    try:
        interrupted(call)
    except BaseException as error:
        kept.append(error)
        if not is_interrupt(error):
            raise
        if kind == "within":
            seconds = closing_seconds(client)
    if kind != "within":
        seconds = closing_seconds(client)
    longest = max(longest, seconds)
print(longest, flush=True)
# At the interpreter's end, what is kept would be destroyed.
os._exit(0)
"""


@pytest.mark.parametrize("kind", ["within", "later", "unary"])
def test_a_client_closes_soon_after_a_call_whose_start_was_interrupted(kind: str) -> None:
    with worker("--device", "cpu") as process:
        command = [sys.executable, "-c", PROGRAM, process.target, kind, str(ROUNDS)]
        completed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert completed.returncode == 0, completed.stderr
    assert float(completed.stdout) < LONGEST_CLOSE_SECONDS
