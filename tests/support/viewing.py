"""Helpers for tests of the viewer."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

from lumigrad.client.commands.view import command

SECONDS = 120.0


def wait_for(condition: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """Waits until a condition is true; returns its value."""
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until
        time.sleep(0.05)
    return found


def options(target: str, *arguments: str) -> argparse.Namespace:
    """Options of `lumigrad view`, with a free port."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args([*arguments, "--target", target, "--port", "0"])
