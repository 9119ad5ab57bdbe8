"""Loops that take no memory from the system once they have run a few times."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import ModuleType

from lumigrad.kernels import _native


def assert_steady_on_device(step: Callable[[], object], native: ModuleType) -> None:
    """Runs a step several times; fails if later ones take memory of the device."""
    _assert_steady(step, native.device_system_allocations, lambda: native.device_bytes(0))


def assert_steady_on_host(step: Callable[[], object]) -> None:
    """Runs a step several times; fails if later ones take memory from the system."""
    # Memory that earlier tests left would be given back meanwhile, ten seconds after its last use.
    _native.pool_trim()
    _assert_steady(step, _native.pool_system_allocations, _native.pool_bytes)


def _assert_steady(step: Callable[[], object], *counters: Callable[[], int]) -> None:
    for _ in range(3):
        step()
    while True:
        before, began = [counter() for counter in counters], time.monotonic()
        for _ in range(4):
            step()
        if [counter() for counter in counters] == before:
            return
        # Memory goes back to the system after ten seconds, for which a busy machine may hold a step up.
        assert time.monotonic() - began > 5.0
