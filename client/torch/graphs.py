"""Calls of a worker inside functions that torch compiles."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def outside_graphs(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, which `torch.compile` runs as it is: graphs end before it and begin anew after it."""
    disabled: list[Callable[P, R]] = []

    @functools.wraps(function)
    def entry(*args: P.args, **kwargs: P.kwargs) -> R:
        # Importing the compiler takes as long as importing torch; who compiles has imported it.
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        if not disabled:
            disabled.append(torch.compiler.disable(function))  # type: ignore[no-untyped-call]
        return disabled[0](*args, **kwargs)

    return entry
