"""Cases for `tests.gpu.runner` that succeed, fail, end their process or never end; and a device without torch."""

from __future__ import annotations

import os
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from tests.gpu.runner import Case, NotHere


class Device:
    """A device that does nothing; it is broken once `name` is "broken"."""

    def __init__(self, name: str) -> None:
        self.name = name

    def engines(self) -> AbstractContextManager[None]:
        return nullcontext()

    def synchronize(self) -> None:
        """Raises if it is broken."""
        if self.name == "broken":
            raise RuntimeError("an illegal memory access")


def _fails(_: Device) -> dict[str, Any]:
    raise ValueError("a value is wrong")


def _lacks(_: Device) -> dict[str, Any]:
    raise NotHere("no such library")


def _hangs(_: Device) -> dict[str, Any]:
    time.sleep(600)
    return {}


def cases(_: Device) -> list[Case]:
    times = {"median_ms": 1.0, "p99_ms": 2.0, "host_ms": 0.5, "runs": 100}
    return [
        Case("good", lambda _: {"ops": {"forward": times}}),
        Case("lacking", _lacks),
        Case("failing", _fails),
        Case("crashing", lambda _: os._exit(7)),
        Case("after the crash", lambda _: {"ops": {"forward": times}}),
        Case("hanging", _hangs),
        Case("never begun", lambda _: {}),
    ]
