"""Repeated calls: requests that hypothesis draws, damaged ones, and the comparison of their answers."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable

import numpy as np
from hypothesis import HealthCheck, Phase, seed, settings

from support.calls.answers import Answer

SECONDS = float(os.environ.get("LUMIGRAD_FUZZ_SECONDS", "0.2"))
EXPLORES = "LUMIGRAD_FUZZ_SECONDS" in os.environ
# Ten examples at a time, until the time is up.
BATCH = settings(
    max_examples=10,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate, Phase.shrink),
)
# Statements before a worker serves, after which its log shows each pass that the general path computes.
GENERAL_PATH = "the general path:"
TELL_OF_GENERAL_PATH = (
    "import os",
    "from lumigrad.server.engines.runner import EngineRunner as runner",
    "from functools import partialmethod",
    "def told(self, name, way, *rest, **named):\n"
    # One write for the whole line, between whose parts no other thread can write.
    f"    os.write(2, f'{GENERAL_PATH} {{name}}\\n'.encode())\n"
    "    return way(self, *rest, **named)",
    "runner.forward = partialmethod(told, 'forward', runner.forward)",
    "runner.backward = partialmethod(told, 'backward', runner.backward)",
)


def repeat(test: Callable[[], None], seconds: float = SECONDS) -> None:
    """Runs a test until the time is up, with new examples each time; seeded unless LUMIGRAD_FUZZ_SECONDS is set."""
    end = time.monotonic() + seconds
    for number in itertools.count():
        (test if EXPLORES else seed(number)(test))()
        if time.monotonic() >= end:
            return


def assert_same(found: Answer, expected: Answer, request: bytes) -> None:
    """Fails unless two answers are equal."""
    for name, value in vars(expected).items():
        assert getattr(found, name) == value, f"{name} differs for {request.hex()[:2000]}"


def damaged(raw: bytes, random: np.random.Generator, way: int) -> bytes:
    """Truncates a message, changes some of its bytes, removes some, or repeats some."""
    start, end = sorted(int(place) for place in random.integers(0, len(raw) + 1, 2))
    if way == 0:
        return raw[:start]
    if way == 1:
        changed = bytearray(raw)
        for place in random.integers(0, len(raw), 1 + int(random.integers(3))):
            changed[place] = int(random.integers(256))
        return bytes(changed)
    end = min(end, start + int(random.integers(1, 20)))
    return raw[:start] + raw[end:] if way == 2 else raw[:end] + raw[start:]
